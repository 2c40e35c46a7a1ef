//! Servers of ZooKeeper, as Debian packages it: a jar, and a Java that runs it.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use super::Leadership;

/// The jar, in the folder in which Debian installs jars.
pub const JAR: &str = "/usr/share/java/zookeeper.jar";

const TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the settings of a server with its data in this folder and its clients at this address, without those about time and about
/// other servers.
pub fn settings(data: &Path, address: SocketAddr) -> String {
    format!(
        "dataDir={}\nclientPort={}\nclientPortAddress={}\nmaxClientCnxns=0\nadmin.enableServer=false\n\
         4lw.commands.whitelist=*\n",
        property(&data.display().to_string()),
        address.port(),
        address.ip(),
    )
}

/// Returns a value as a file of Java properties has it.
fn property(value: &str) -> String {
    let mut escaped = String::new();
    for unit in value.encode_utf16() {
        match char::from_u32(unit.into()).filter(char::is_ascii) {
            Some('\\') => escaped += "\\\\",
            Some(letter) => escaped.push(letter),
            None => escaped += &format!("\\u{unit:04x}"),
        }
    }
    escaped
}

/// A logger to stderr, which a package has that Debian's ZooKeeper needs. Java ignores a jar that is missing.
const LOGGER: &str = "/usr/share/java/slf4j-simple.jar";

/// Returns the arguments of `java` for a server with these settings, with these options. It logs warnings.
pub fn java_arguments(options: &[&str], settings: &Path) -> Vec<OsString> {
    let usual = ["-Djava.net.preferIPv4Stack=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"];
    let (class_path, server) = (format!("{JAR}:{LOGGER}"), "org.apache.zookeeper.server.quorum.QuorumPeerMain");
    let words = usual.iter().chain(options).copied().chain(["-cp", &class_path, server]);
    words.map(OsString::from).chain([settings.into()]).collect()
}

/// Returns the answer to a command of four letters.
///
/// # Errors
///
/// The server does not answer.
pub fn ask(address: SocketAddr, command: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(command.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Asks the server that serves clients at this address whether it leads.
///
/// # Errors
///
/// It does not answer in time, or knows no leader.
pub fn leadership(address: SocketAddr) -> io::Result<Leadership> {
    read_srvr(&ask(address, "srvr")?).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn read_srvr(answer: &str) -> Option<Leadership> {
    let field = |name: &str| answer.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let zxid = u64::from_str_radix(field("Zxid: ")?.trim_start_matches("0x"), 16).ok()?;
    // The upper half of a transaction's number is the epoch.
    Some(Leadership { is_leader: field("Mode: ")? == "leader", term: zxid >> 32 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_says_its_mode_and_its_epoch() {
        let answer = |mode: &str| format!("Zookeeper version: 3.8\nZxid: 0x300000012\nMode: {mode}\nNode count: 5\n");
        assert_eq!(read_srvr(&answer("leader")), Some(Leadership { is_leader: true, term: 3 }));
        assert_eq!(read_srvr(&answer("follower")), Some(Leadership { is_leader: false, term: 3 }));
        assert_eq!(read_srvr("This ZooKeeper instance is not currently serving requests\n"), None);
    }
}
