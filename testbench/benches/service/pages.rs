//! What open pages cost the service: the same clients without and with them, turn about.

use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::Duration;

use palisade_testbench::servers::{Absent, Service, free_port};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::sample::Workload;
use crate::server::Server;
use crate::{ROUNDS, median};

/// How many pages are open.
const PAGES: usize = 200;

/// Pages that read everything they get, until this is dropped. They use a thread of their own, like browsers on other hosts
/// would use their own processors; on this machine they share them with the service.
struct OpenPages(Option<oneshot::Sender<()>>, Option<thread::JoinHandle<u64>>);

impl OpenPages {
    fn open(http: SocketAddr) -> OpenPages {
        let (stop, stopped) = oneshot::channel();
        let (opened, all_open) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut pages = tokio::task::JoinSet::new();
                for _ in 0..PAGES {
                    let opened = opened.clone();
                    pages.spawn(async move {
                        let mut stream = TcpStream::connect(http).await.unwrap();
                        stream.write_all(b"GET /page/stream HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
                        let mut buffer = vec![0; 64 << 10];
                        assert!(stream.read(&mut buffer).await.unwrap() > 0, "it begins");
                        opened.send(()).unwrap();
                        while stream.read(&mut buffer).await.unwrap() > 0 {}
                    });
                }
                drop(stopped.await);
                // A page that has ended was dropped.
                let mut dropped = 0;
                while let Some(Some(_)) = futures_util::FutureExt::now_or_never(pages.join_next()) {
                    dropped += 1;
                }
                dropped
            })
        });
        (0..PAGES).for_each(|_| all_open.recv().unwrap());
        OpenPages(Some(stop), Some(thread))
    }

    /// Closes them, and returns how many the service had dropped.
    fn close(mut self) -> u64 {
        drop(self.0.take());
        self.1.take().map_or(0, |thread| thread.join().unwrap())
    }
}

/// Measures and prints it.
pub(crate) fn measure(runtime: &Runtime, folder: &Path, workload: &Workload, length: Duration) -> Result<(), Absent> {
    std::fs::create_dir(folder)?;
    let http = free_port()?;
    let service = Service::start_with(env!("CARGO_BIN_EXE_serve"), folder, &[("SERVE_HTTP", &http.to_string())])?;
    let server = Server::Palisade(service);
    runtime.block_on(workload.sample(&server, length));
    let (mut ratios, mut rates, mut dropped) = (Vec::new(), Vec::new(), 0);
    for _ in 0..ROUNDS {
        let without = runtime.block_on(workload.sample(&server, length)).per_second;
        let pages = OpenPages::open(http);
        let with = runtime.block_on(workload.sample(&server, length)).per_second;
        dropped += pages.close();
        ratios.push(with / without);
        rates.push((without, with));
    }
    println!(
        "\n{PAGES} open pages, {}: cycles a second without and with them, {} pages dropped",
        workload.title, dropped
    );
    for (without, with) in rates {
        println!("  {without:>10.0} {with:>10.0}");
    }
    println!("  median ratio {:.2}", median(ratios.into_iter()));
    Ok(())
}
