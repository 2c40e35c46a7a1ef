//! ZooKeeper, as Debian packages it: a jar, and a Java that runs it.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{Absent, Process, free_port};

/// The folder in which Debian installs jars.
const JAR: &str = "/usr/share/java/zookeeper.jar";

/// A ZooKeeper of one node. What it acknowledges is on its disk.
pub struct ZooKeeper {
    process: Process,
    /// Its address.
    pub address: SocketAddr,
}

impl ZooKeeper {
    /// Starts one whose files are in this directory, and waits until it answers.
    ///
    /// # Errors
    ///
    /// It or Java is not installed, or it does not begin to answer.
    pub fn start(directory: &Path) -> Result<ZooKeeper, Absent> {
        if !Path::new(JAR).exists() {
            return Err(Absent::NotInstalled("zookeeper"));
        }
        let address = free_port()?;
        let folder = directory.join("zookeeper");
        fs::create_dir_all(&folder)?;
        let settings = folder.join("zoo.cfg");
        let text = format!(
            "tickTime=2000\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n\
             admin.enableServer=false\n4lw.commands.whitelist=ruok\n",
            folder.display(),
            address.port(),
        );
        fs::write(&settings, text)?;
        let mut command = Command::new("java");
        command.args(["-Xmx1g", "-Djava.net.preferIPv4Stack=true", "-cp", JAR]);
        command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(&settings);
        let mut process = Process::start("java", command, &folder)?;
        process.until(|| is_ok(address))?;
        Ok(ZooKeeper { process, address })
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }
}

/// Whether `ruok` is answered.
fn is_ok(address: SocketAddr) -> bool {
    let ask = || -> io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"ruok")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer == "imok")
}
