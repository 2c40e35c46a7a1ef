//! Tells systemd when the service serves, and when it stops (`sd_notify`).

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
        let Some(place) = &self.0 else { return };
        let sent = address(place).and_then(|address| UnixDatagram::unbound()?.send_to_addr(state, &address));
        if let Err(error) = sent {
            tracing::warn!(%error, "systemd could not be told");
        }
    }
}

fn address(place: &OsString) -> io::Result<SocketAddr> {
    match place.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(place),
    }
}
