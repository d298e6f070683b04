# One image for every role; docker-compose.yml says which command each runs.
FROM python:3.13-slim
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /opt/switchyard
COPY requirements.lock .
RUN pip install --no-cache-dir --require-hashes -r requirements.lock
COPY . .
RUN useradd --system --uid 10001 --home-dir /var/lib/switchyard switchyard \
    && install -d -o switchyard -g switchyard /var/lib/switchyard
USER switchyard
EXPOSE 8000
CMD ["gunicorn", "config.wsgi", "-b", "0.0.0.0:8000", "-w", "4", "--threads", "8"]
