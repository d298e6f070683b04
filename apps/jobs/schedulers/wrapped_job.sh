#!/bin/sh
# The job's own script is sealed below. It runs as a child of this one, beside one process that sends what it writes to
# Switchyard. Neither a server that is down nor a tool that is missing here keeps it from running.
unset _swy_dir _swy_base _swy_mask _swy_size _swy_python _swy_token _swy_url _swy_child _swy_sender _swy_got _swy_again \
  _swy_code _swy_now _swy_early _swy_one _swy_pos _swy_flags _swy_key _swy_value _swy_file _swy_sent _swy_least \
  _swy_wanted _swy_wait _swy_last _swy_n _swy_answer _swy_name _swy_shown
: "${PATH:=/usr/local/bin:/usr/bin:/bin}"

_swy_decode() {
  if command -v base64 >/dev/null 2>&1; then base64 -d
  elif command -v openssl >/dev/null 2>&1; then openssl base64 -d
  else python3 -c 'import base64, sys; base64.decode(sys.stdin.buffer, sys.stdout.buffer)'
  fi
}

_swy_mask=$(umask)
umask 077
for _swy_base in "${TMPDIR:-/tmp}" /tmp /var/tmp /dev/shm "${HOME:-/tmp}" "$PWD"; do
  _swy_dir=$(mktemp -d "$_swy_base/switchyard.XXXXXXXXXX" 2>/dev/null) || continue
  _swy_decode >"$_swy_dir/script" 2>/dev/null <<'@END@'
@SCRIPT@
@END@
  cat >"$_swy_dir/run.py" 2>/dev/null <<'@END@'
@RUN@
@END@
  cat >"$_swy_dir/config" 2>/dev/null <<'@END@'
@CONFIG@
@END@
  cat >"$_swy_dir/ca.pem" 2>/dev/null <<'@END@'
@CA@@END@
  _swy_size=$(wc -c <"$_swy_dir/script")
  [ "$_swy_size" -eq @SIZE@ ] && [ -s "$_swy_dir/config" ] && break
  rm -rf "$_swy_dir"
  _swy_dir=
done
umask "$_swy_mask"
if [ -z "$_swy_dir" ]; then
  echo "The job's script could not be unpacked: there is no folder with room for it (tried TMPDIR, /tmp and others)." >&2
  exit 126
fi

for _swy_python in python3 /usr/libexec/platform-python; do
  command -v "$_swy_python" >/dev/null 2>&1 || continue
  "$_swy_python" -I -S "$_swy_dir/run.py" check </dev/null >/dev/null 2>&1 || continue
  exec "$_swy_python" -I -S "$_swy_dir/run.py" run "$_swy_dir" "${LC_CTYPE+set}" "$@"
done

# -- without Python: the same by the shell and curl, or without a live log where there is no curl either. A signal for
# the whole job reaches the script twice then, and a script that dies of a signal ends as a shell would say it.
rm -f "$_swy_dir/run.py" "$_swy_dir/config"
_swy_url=@URL@
_swy_token=@TOKEN@
[ -n "${SWITCHYARD_METRICS:-}" ] || SWITCHYARD_METRICS=$_swy_dir/metrics.jsonl
export SWITCHYARD_METRICS

_swy_place() { # notes where the output behind descriptor $1, stream $2, goes on; its own output must stay as it is
  _swy_pos=0 _swy_flags=0
  while read -r _swy_key _swy_value; do
    case $_swy_key in pos:) _swy_pos=$_swy_value ;; flags:) _swy_flags=$_swy_value ;; esac
  done <"/proc/$$/fdinfo/$1"
  [ $((_swy_flags & 02000)) -eq 0 ] || _swy_pos=$(wc -c <"/proc/$$/fd/$1")
  echo $((_swy_pos)) 0 >"$_swy_dir/$2.state"
}

_swy_copy() { # pass on what comes through the pipe of stream $1 to descriptor $2, and keep some of it to send
  mkfifo "$_swy_dir/$1.pipe" "$_swy_dir/$1.copy" || return
  (
    trap '' HUP INT QUIT USR1 USR2 ALRM TERM
    { head -c @SPOOL@ >"$_swy_dir/$1"; cat >/dev/null; } <"$_swy_dir/$1.copy" >/dev/null 2>&1 &
    exec tee "$_swy_dir/$1.copy" <"$_swy_dir/$1.pipe" >&"$2" 2>/dev/null
  ) &
  echo 0 0 >"$_swy_dir/$1.state"
}

_swy_post() { # stream $1 at offset $2, from the file chunk; says the status
  printf 'header = "Authorization: Job %s"\n' "$_swy_token" | curl -q -s -K - -m 5 --noproxy '*' \
    ${_swy_ca:+--cacert "$_swy_dir/ca.pem"} -H "X-Offset: $2" -H "X-Restart: ${SLURM_RESTART_COUNT:-0}" -H 'Expect:' \
    -H 'Content-Type: application/octet-stream' --data-binary @"$_swy_dir/chunk" -D "$_swy_dir/head" -o /dev/null \
    -w '%{http_code}' "$_swy_url/api/v1/job-output/$1/"
}

_swy_send() { # what is new of stream $1; fails where it should be tried again later
  case $1 in
    metrics) _swy_file=$SWITCHYARD_METRICS _swy_shown= ;;
    stdout) _swy_file=/proc/$$/fd/1 _swy_shown=$(readlink "/proc/$$/fd/1") ;;
    stderr) _swy_file=/proc/$$/fd/2 _swy_shown=$(readlink "/proc/$$/fd/2") ;;
  esac
  [ "$1" = metrics ] || [ ! -p "$_swy_dir/$1.pipe" ] || _swy_file=$_swy_dir/$1 _swy_shown="the scheduler's own output"
  while [ -e "$_swy_dir/$1.state" ] && [ -f "$_swy_file" ]; do
    read -r _swy_pos _swy_sent <"$_swy_dir/$1.state"
    _swy_size=$(wc -c <"$_swy_file")
    [ "$_swy_size" -ge "$_swy_pos" ] || _swy_pos=0
    [ "$_swy_size" -gt "$_swy_pos" ] || return 0
    _swy_least=$((@LIMIT@ - _swy_sent))
    [ "$_swy_least" -le 1048576 ] || _swy_least=1048576
    if [ "$_swy_least" -gt 0 ]; then
      tail -c "+$((_swy_pos + 1))" "$_swy_file" | head -c "$_swy_least" >"$_swy_dir/chunk"
    elif [ -n "$_swy_shown" ]; then
      printf '\n[the log goes on in %s]\n' "$_swy_shown" >"$_swy_dir/chunk"
    else
      rm -f "$_swy_dir/$1.state"
      return 0
    fi
    _swy_size=$(wc -c <"$_swy_dir/chunk")
    [ "$_swy_size" -gt 0 ] || return 0
    _swy_answer=$(_swy_post "$1" "$_swy_sent")
    _swy_wanted=$(sed -n 's/^[Xx]-[Oo]ffset: *\([0-9][0-9]*\).*/\1/p' "$_swy_dir/head" | tail -n 1)
    : "${_swy_wanted:=$_swy_sent}"
    case $_swy_answer in
      200)
        echo $((_swy_pos + _swy_size)) "$_swy_wanted" >"$_swy_dir/$1.state"
        [ "$_swy_least" -gt 0 ] || rm -f "$_swy_dir/$1.state"
        ;;
      409)
        [ "$_swy_wanted" -ne "$_swy_sent" ] || return 1
        _swy_pos=$((_swy_pos + _swy_wanted - _swy_sent))
        [ "$_swy_pos" -ge 0 ] || _swy_pos=0
        echo "$_swy_pos" "$_swy_wanted" >"$_swy_dir/$1.state"
        ;;
      401 | 413) rm -f "$_swy_dir/$1.state" ;;
      *) return 1 ;;
    esac
    [ -n "$_swy_last" ] || [ ! -e "$_swy_dir/end" ] || return 0
  done
}

_swy_run_sender() {
  trap '' HUP INT QUIT USR1 USR2 ALRM TERM
  _swy_ca=
  [ ! -s "$_swy_dir/ca.pem" ] || _swy_ca=1
  _swy_wait=@PERIOD@
  _swy_last=
  while [ -z "$_swy_last" ]; do
    _swy_n=0
    while [ "$_swy_n" -lt "$_swy_wait" ] && [ ! -e "$_swy_dir/end" ]; do
      sleep 1
      _swy_n=$((_swy_n + 1))
    done
    [ ! -e "$_swy_dir/end" ] || _swy_last=1
    _swy_n=0
    for _swy_name in stderr stdout metrics; do _swy_send "$_swy_name" || _swy_n=1; done
    if [ "$_swy_n" -eq 0 ]; then _swy_wait=@PERIOD@; else _swy_wait=$((_swy_wait * 2)); fi
    [ "$_swy_wait" -le 60 ] || _swy_wait=60
  done
}

_swy_forward() {
  _swy_got=1
  if [ -n "$_swy_child" ]; then kill -s "$1" "$_swy_child" 2>/dev/null; else _swy_early="$_swy_early $1"; fi
}

exec 3<&0 # a shell gives its background processes no input
_swy_one=
[ ! "/proc/$$/fd/1" -ef "/proc/$$/fd/2" ] || _swy_one=1
if command -v curl >/dev/null 2>&1; then
  if [ -f "/proc/$$/fd/1" ]; then _swy_place 1 stdout; else _swy_copy stdout 1; fi
  if [ -n "$_swy_one" ]; then :
  elif [ -f "/proc/$$/fd/2" ]; then _swy_place 2 stderr
  else _swy_copy stderr 2
  fi
  _swy_pos=0
  [ ! -f "$SWITCHYARD_METRICS" ] || _swy_pos=$(wc -c <"$SWITCHYARD_METRICS")
  echo "$_swy_pos" 0 >"$_swy_dir/metrics.state"
  _swy_run_sender </dev/null >/dev/null 2>&1 3<&- &
  _swy_sender=$!
fi

for _swy_name in HUP INT QUIT USR1 USR2 ALRM TERM CONT; do trap "_swy_forward $_swy_name" "$_swy_name"; done
set -- @COMMAND@ "$_swy_dir/script" "$@"
# A shell also makes its background processes deaf to INT and QUIT.
if env --default-signal=INT,QUIT true >/dev/null 2>&1; then
  set -- env --default-signal=INT,QUIT "$@"
elif command -v perl >/dev/null 2>&1; then
  set -- perl -e '$SIG{INT} = $SIG{QUIT} = "DEFAULT"; exec {$ARGV[0]} @ARGV or exit 127' "$@"
fi
(
  if [ -p "$_swy_dir/stdout.pipe" ]; then
    exec >"$_swy_dir/stdout.pipe"
    [ -z "$_swy_one" ] || exec 2>&1
  fi
  [ ! -p "$_swy_dir/stderr.pipe" ] || exec 2>"$_swy_dir/stderr.pipe"
  exec "$@" 3<&-
) <&3 &
_swy_child=$!
for _swy_name in $_swy_early; do kill -s "$_swy_name" "$_swy_child" 2>/dev/null; done
_swy_again=
while :; do
  _swy_got=
  wait "$_swy_child" 2>/dev/null
  _swy_now=$?
  # 127 when asked again: it had ended already the first time.
  [ "$_swy_now" -eq 127 ] && [ -n "$_swy_again" ] || _swy_code=$_swy_now
  [ -n "$_swy_got" ] || break
  _swy_again=1
done
if [ -n "$_swy_sender" ]; then
  : >"$_swy_dir/end"
  _swy_n=0
  while [ "$_swy_n" -lt 6 ] && kill -0 "$_swy_sender" 2>/dev/null; do
    sleep 1
    _swy_n=$((_swy_n + 1))
  done
  kill -s KILL "$_swy_sender" 2>/dev/null && wait "$_swy_sender" 2>/dev/null
fi
rm -rf "$_swy_dir"
exit "$_swy_code"
