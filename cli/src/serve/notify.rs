//! Notifies systemd when the service is ready, and when it stops (`sd_notify`).

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The socket of `sd_notify`; `None` outside systemd.
pub(super) struct SystemdNotifier(Option<OsString>);

impl SystemdNotifier {
    pub(super) fn from_environment() -> SystemdNotifier {
        SystemdNotifier(env::var_os("NOTIFY_SOCKET"))
    }

    pub(super) fn ready(&self) {
        self.send(b"READY=1");
    }

    pub(super) fn stopping(&self) {
        self.send(b"STOPPING=1");
    }

    fn send(&self, state: &[u8]) {
        let Some(socket) = &self.0 else { return };
        let sent = address(socket).and_then(|address| UnixDatagram::unbound()?.send_to_addr(state, &address));
        if let Err(error) = sent {
            tracing::warn!(%error, "cannot notify systemd");
        }
    }
}

fn address(socket: &OsString) -> io::Result<SocketAddr> {
    match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(socket),
    }
}
