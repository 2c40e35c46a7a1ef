//! Tells systemd when the service serves, and when it stops (`sd_notify`).

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Where to tell it; nowhere, when nobody asks.
pub(super) struct Notice(Option<OsString>);

impl Notice {
    pub(super) fn from_environment() -> Notice {
        Notice(env::var_os("NOTIFY_SOCKET"))
    }

    pub(super) fn ready(&self) {
        self.tell(b"READY=1");
    }

    pub(super) fn stopping(&self) {
        self.tell(b"STOPPING=1");
    }

    fn tell(&self, state: &[u8]) {
        let Some(place) = &self.0 else { return };
        let told = address(place).and_then(|address| UnixDatagram::unbound()?.send_to_addr(state, &address));
        if let Err(error) = told {
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
