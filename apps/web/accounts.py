"""Signing in, one's own account, tokens and inbox."""

from __future__ import annotations

from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView, LogoutView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import path
from django.views.decorators.http import require_http_methods, require_POST

from apps.accounts.actions import create_token, edit_own_account, mark_notices_read, revoke_token, set_own_password
from apps.accounts.queries import notices_of, tokens_of
from apps.web.forms import AccountForm, PasswordForm, TokenForm
from apps.web.render import allows, form_errors, page, toast


class SignInForm(AuthenticationForm):
    error_messages = {
        **AuthenticationForm.error_messages,
        "invalid_login": "This name and password do not belong together. Both are case-sensitive.",
    }


class SignIn(LoginView):
    template_name = "accounts/sign_in.html"
    authentication_form = SignInForm
    redirect_authenticated_user = True


@require_http_methods(["GET", "POST"])
@allows("token.own")
def account(request: HttpRequest) -> HttpResponse:
    user = request.user
    initial = {"first_name": user.first_name, "last_name": user.last_name, "email": user.email}
    form = AccountForm(request.POST or None, initial=initial)
    if request.method == "POST" and form.is_valid():
        with form_errors(form):
            edit_own_account(user, time_zone=user.time_zone, **form.cleaned_data)
            toast(request, "Saved.")
            return redirect("web:account")
    return page(request, "accounts/account.html", {"form": form, "tab": "account"})


@require_http_methods(["GET", "POST"])
@allows("token.own")
def password(request: HttpRequest) -> HttpResponse:
    form = PasswordForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with form_errors(form):
            set_own_password(request.user, old=form.cleaned_data["old"], new=form.cleaned_data["new"])
            update_session_auth_hash(request, request.user)
            toast(request, "Your password is changed. Other sessions of yours have ended.")
            return redirect("web:overview")
    return page(request, "accounts/password.html", {"form": form, "tab": "password"})


@require_http_methods(["GET", "POST"])
@allows("token.own")
def tokens(request: HttpRequest) -> HttpResponse:
    """A new token's text is on the answer to the form and nowhere else."""
    form, text = TokenForm(request.POST or None), None
    if request.method == "POST" and form.is_valid():
        with form_errors(form):
            _, text = create_token(request.user, **form.cleaned_data)
            form = TokenForm()
    context = {"form": form, "text": text, "tokens": tokens_of(request.user), "tab": "tokens"}
    response = page(request, "accounts/tokens.html", context)
    response["Cache-Control"] = "no-store"
    return response


@require_POST
@allows("token.own")
def token_revoke(request: HttpRequest, token_key: str) -> HttpResponse:
    revoke_token(request.user, token_key)
    toast(request, "The token is revoked: what uses it is refused from now on.")
    return redirect("web:tokens")


@require_http_methods(["GET", "POST"])
@allows("token.own")
def inbox(request: HttpRequest) -> HttpResponse:
    if request.method == "POST":
        mark_notices_read(request.user)
        return redirect("web:inbox")
    return page(request, "accounts/inbox.html", {"notices": notices_of(request.user), "tab": "inbox"})


urlpatterns = [
    path("sign-in/", SignIn.as_view(), name="sign-in"),
    path("sign-out/", LogoutView.as_view(), name="sign-out"),
    path("account/", account, name="account"),
    path("account/password/", password, name="password"),
    path("account/tokens/", tokens, name="tokens"),
    path("account/tokens/<str:token_key>/revoke/", token_revoke, name="token-revoke"),
    path("inbox/", inbox, name="inbox"),
]
