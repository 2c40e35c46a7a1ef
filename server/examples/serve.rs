fn main() {
    let mut args = std::env::args().skip(1);
    let (dir, addr) = (args.next().unwrap(), args.next().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let local = tokio::task::LocalSet::new();
    runtime.block_on(local.run_until(async {
        let listener = tokio::net::TcpListener::bind(addr).await.unwrap();
        palisade_server::serve(palisade_server::Config { data_dir: dir.into() }, listener).await.unwrap();
    }));
}
