//! µs per message of 1 KB through an echo relay, this event loop against tokio's `current_thread`:
//! `cargo bench -p weir-proxy --bench event_loop`.
//!
//! Client, relay and echo server share one loop, so that the sockets' cost is the same on both sides
//! and what differs is the loops. The two take turns; medians of the rounds with their quartiles.

use std::net::SocketAddr;
use std::pin::pin;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use weir_core::proxy::SideOptions;
use weir_proxy::runtime::{Handle, ListenOptions, Runtime, TcpListener, TcpStream, try_both};

const ROUNDS: usize = 15;
const CONNECTIONS: usize = 40;
const MESSAGES: usize = 500;
const MESSAGE: [u8; 1024] = [7; 1024];

fn main() {
    let (mut own, mut tokio) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        own.push(time(own_loop));
        tokio.push(time(tokio_loop));
    }
    println!("µs per message of 1 KB: client, relay, echo and back, {CONNECTIONS} connections");
    for (name, times) in [("weir", &mut own), ("tokio current_thread", &mut tokio)] {
        times.sort_by(f64::total_cmp);
        let [low, median, high] = [1, 2, 3].map(|quarter| times[times.len() * quarter / 4]);
        println!("{name:<22}{median:>7.2}  ({low:.2} to {high:.2})");
    }
}

fn time(run: fn()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64() * 1e6 / (CONNECTIONS * MESSAGES) as f64
}

/// Where the clients connect to, and where the relay does.
struct Addresses {
    relay: SocketAddr,
    echo: SocketAddr,
}

fn any() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn own_loop() {
    let runtime = Runtime::new().expect("an event loop");
    let handle = runtime.handle().clone();
    let (relay, relay_at) = listen(&handle);
    let (echo, echo_at) = listen(&handle);
    let addresses = Addresses {
        relay: relay_at,
        echo: echo_at,
    };
    serve(&handle, echo, |client| async move {
        let _ = pump(&client, &client).await;
    });
    let own = handle.clone();
    serve(&handle, relay, move |client| {
        let handle = own.clone();
        async move {
            let server = dial(&handle, addresses.echo).await;
            // If one side ends first, its peer reads an end.
            let _ = try_both(pin!(pump(&client, &server)), pin!(pump(&server, &client))).await;
        }
    });
    let clients = async move {
        let done = std::rc::Rc::new(std::cell::Cell::new(0));
        let main = handle.running();
        for _ in 0..CONNECTIONS {
            let (task, done) = (handle.clone(), done.clone());
            handle.spawn(async move {
                ask(&dial(&task, addresses.relay).await).await;
                done.set(done.get() + 1);
                task.wake(main);
            });
        }
        let finished = || (done.get() == CONNECTIONS).then_some(());
        handle.wait_for(finished).await.expect("no deadline");
    };
    runtime.run(clients).expect("epoll works");
}

fn listen(handle: &Handle) -> (TcpListener, SocketAddr) {
    let options = ListenOptions {
        backlog: 128,
        ..ListenOptions::default()
    };
    let fd = TcpListener::open(any(), &options).expect("a port");
    let local = rustix::net::getsockname(&fd).expect("an address");
    let address = local.try_into().expect("an IP address");
    (TcpListener::new(fd, handle), address)
}

fn serve<F: Future<Output = ()> + 'static>(
    handle: &Handle,
    listener: TcpListener,
    work: impl Fn(TcpStream) -> F + 'static,
) {
    let own = handle.clone();
    handle.spawn(async move {
        while listener
            .accept(|| Some(()), |(), client, _| own.spawn(work(client)))
            .await
            .is_ok()
        {}
    });
}

async fn dial(handle: &Handle, address: SocketAddr) -> TcpStream {
    let options = SideOptions::default();
    let stream = TcpStream::connect(handle, address, None, &options).await;
    stream.expect("the listener is there")
}

async fn pump(from: &TcpStream, to: &TcpStream) -> std::io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    while let received @ 1.. = from.receive(&mut buffer).await? {
        to.send_all(&buffer[..received], false).await?;
    }
    to.shut_down_write();
    Ok(())
}

async fn ask(stream: &TcpStream) {
    let mut buffer = [0; MESSAGE.len()];
    for _ in 0..MESSAGES {
        stream.send_all(&MESSAGE, false).await.expect("a relay");
        let mut received = 0;
        while received < buffer.len() {
            received += stream
                .receive(&mut buffer[received..])
                .await
                .expect("an echo");
        }
    }
}

fn tokio_loop() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .expect("an event loop");
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let relay = tokio::net::TcpListener::bind(any()).await.expect("a port");
        let echo = tokio::net::TcpListener::bind(any()).await.expect("a port");
        let addresses = Addresses {
            relay: relay.local_addr().expect("an address"),
            echo: echo.local_addr().expect("an address"),
        };
        tokio::task::spawn_local(async move {
            while let Ok((client, _)) = echo.accept().await {
                tokio::task::spawn_local(async move {
                    let (from, to) = client.into_split();
                    tokio_pump(from, to).await;
                });
            }
        });
        tokio::task::spawn_local(async move {
            while let Ok((client, _)) = relay.accept().await {
                tokio::task::spawn_local(async move {
                    let server = tokio_dial(addresses.echo).await;
                    client.set_nodelay(true).expect("a socket");
                    let (from_client, to_client) = client.into_split();
                    let (from_server, to_server) = server.into_split();
                    tokio::join!(
                        tokio_pump(from_client, to_server),
                        tokio_pump(from_server, to_client)
                    );
                });
            }
        });
        let clients: Vec<_> = (0..CONNECTIONS)
            .map(|_| tokio::task::spawn_local(tokio_ask(addresses.relay)))
            .collect();
        for client in clients {
            client.await.expect("no panic");
        }
    });
}

async fn tokio_dial(address: SocketAddr) -> tokio::net::TcpStream {
    let stream = tokio::net::TcpStream::connect(address).await;
    let stream = stream.expect("the listener is there");
    stream.set_nodelay(true).expect("a socket");
    stream
}

async fn tokio_pump(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(received @ 1..) = from.read(&mut buffer).await {
        to.write_all(&buffer[..received]).await.expect("a reader");
    }
}

async fn tokio_ask(address: SocketAddr) {
    let mut stream = tokio_dial(address).await;
    let mut buffer = [0; MESSAGE.len()];
    for _ in 0..MESSAGES {
        stream.write_all(&MESSAGE).await.expect("a relay");
        stream.read_exact(&mut buffer).await.expect("an echo");
    }
}
