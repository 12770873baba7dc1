# Tapedeck in one image: the server by default, an executor with `executor …` as the command.
#   docker build -t tapedeck .
# The image runs as a user of its own; its only writable place is /var/lib/tapedeck.

FROM rust:1.95-slim-trixie AS build
WORKDIR /src
COPY . .
# The caches live outside the layers, so a change of one crate compiles that crate.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --package tapedeck-cli --bin tapedeck \
    && install -D --mode=0755 target/release/tapedeck /out/tapedeck

FROM debian:trixie-slim
# Roots for executors that reach their server over TLS; git for their workspaces.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates git openssh-client \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 tapedeck \
    && useradd --uid 10001 --gid tapedeck --no-log-init --shell /usr/sbin/nologin \
        --home-dir /var/lib/tapedeck --create-home tapedeck \
    && chmod 0700 /var/lib/tapedeck

# Asks the server in this container for /readyz, with its token if there is one. Nothing but bash
# is needed, so the image carries no HTTP client. `timeout` bounds a server that accepts and hangs.
COPY --chmod=0755 <<'SCRIPT' /usr/local/bin/tapedeck-ready
#!/bin/bash
set -eu
exec 3<>/dev/tcp/127.0.0.1/7070
printf 'GET /readyz HTTP/1.1\r\nHost: localhost:7070\r\nConnection: close\r\n' >&3
if [ -r "${TAPEDECK_TOKEN_FILE:-}" ]; then
  printf 'Authorization: Bearer %s\r\n' "$(<"$TAPEDECK_TOKEN_FILE")" >&3
fi
printf '\r\n' >&3
read -r _ status _ <&3
[ "$status" = 200 ]
SCRIPT

COPY --from=build /out/tapedeck /usr/local/bin/tapedeck
COPY LICENSE /usr/share/doc/tapedeck/LICENSE

USER tapedeck:tapedeck
WORKDIR /var/lib/tapedeck
VOLUME /var/lib/tapedeck
ENV TAPEDECK_TOKEN_FILE=/run/secrets/tapedeck_token
EXPOSE 7070
# SIGTERM drains; give it longer than the server's own bound before SIGKILL follows.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --start-interval=1s --retries=3 \
    CMD ["timeout", "4", "tapedeck-ready"]
ENTRYPOINT ["tapedeck"]
# A bind beyond loopback is refused without a token file.
CMD ["serve", "--listen", "0.0.0.0:7070", "--data-dir", "/var/lib/tapedeck", "--token-file", "/run/secrets/tapedeck_token"]
