use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use socket2::{SockFilter, SockRef};

use super::*;
use weir_core::proxy::SideOptions;

fn run<T: 'static>(main: impl AsyncFnOnce(Handle) -> T + 'static) -> T {
    let runtime = Runtime::new().unwrap();
    let handle = runtime.handle().clone();
    runtime.run(async move { main(handle).await }).unwrap()
}

fn listener(handle: &Handle) -> (SocketAddr, TcpListener) {
    let any = "127.0.0.1:0".parse().unwrap();
    let options = ListenOptions {
        backlog: 16,
        ..ListenOptions::default()
    };
    let fd = TcpListener::open(any, &options).unwrap();
    let address = rustix::net::getsockname(&fd).unwrap().try_into().unwrap();
    (address, TcpListener::new(fd, handle))
}

async fn pair(handle: &Handle) -> (TcpStream, TcpStream) {
    let (address, listener) = listener(handle);
    let options = SideOptions::default();
    let connected = TcpStream::connect(handle, address, None, &options)
        .await
        .unwrap();
    let accepted = Cell::new(None);
    listener
        .accept(|| Some(()), |(), stream, _| accepted.set(Some(stream)))
        .await
        .unwrap();
    (connected, accepted.take().unwrap())
}

#[test]
fn a_task_that_is_woken_in_its_last_poll_is_not_run_again() {
    run(async |handle| {
        let inner = handle.clone();
        handle.spawn(async move {
            let woken = async {
                inner.yield_now().await;
                Ok(())
            };
            let fails = async { Err::<(), ()>(()) };
            assert_eq!(try_both(pin!(woken), pin!(fails)).await, Err(()));
        });
        for _ in 0..3 {
            handle.yield_now().await;
        }
    });
}

#[test]
fn tasks_take_turns() {
    let order = run(async |handle| {
        let order = Rc::new(RefCell::new(Vec::new()));
        for name in ["a", "b"] {
            let (order, handle_in) = (order.clone(), handle.clone());
            handle.spawn(async move {
                for _ in 0..2 {
                    order.borrow_mut().push(name);
                    handle_in.yield_now().await;
                }
            });
        }
        for _ in 0..4 {
            handle.yield_now().await;
        }
        order.take()
    });
    assert_eq!(order, ["a", "b", "a", "b"]);
}

#[test]
fn a_wait_ends_at_the_tasks_deadline_and_the_next_one_may_go_on() {
    run(async |handle| {
        let (client, server) = pair(&handle).await;
        let start = Instant::now();
        handle.set_deadline(Duration::from_millis(30));
        let error = server.receive(&mut [0; 8]).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        assert!(start.elapsed() >= Duration::from_millis(29));
        handle.set_deadline(Duration::from_secs(20));
        client.send_all(b"late", false).await.unwrap();
        let mut bytes = [0; 8];
        assert_eq!(server.receive(&mut bytes).await.unwrap(), 4);
        drop(client);
    });
}

#[test]
fn a_deadline_that_is_moved_on_does_not_fire() {
    run(async |handle| {
        let (sender, mailbox) = mailbox(&handle).unwrap();
        handle.set_deadline(Duration::from_millis(1));
        handle.set_deadline(Duration::from_secs(20));
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            sender.send("in time");
        });
        assert_eq!(mailbox.receive().await.unwrap(), "in time");
        thread.join().unwrap();
    });
}

#[test]
fn an_end_behind_a_short_read_is_not_missed() {
    run(async |handle| {
        let (client, server) = pair(&handle).await;
        // Registers the server's side, so that it learns of bytes and end by events only.
        handle.set_deadline(Duration::from_millis(1));
        assert!(server.receive(&mut [0; 8]).await.is_err());
        handle.set_deadline(Duration::from_secs(20));
        client.send_all(b"last", false).await.unwrap();
        drop(client);
        let mut bytes = [0; 8];
        assert_eq!(server.receive(&mut bytes).await.unwrap(), 4);
        assert_eq!(server.receive(&mut bytes).await.unwrap(), 0);
    });
}

#[test]
fn a_refused_connection_is_an_error() {
    run(async |handle| {
        let (address, listener) = listener(&handle);
        drop(listener);
        let options = SideOptions::default();
        let refused = TcpStream::connect(&handle, address, None, &options).await;
        let error = refused.err().unwrap();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn a_burst_of_connections_is_accepted_whole() {
    run(async |handle| {
        let (address, listener) = listener(&handle);
        let clients: Vec<_> = (0..10)
            .map(|_| std::net::TcpStream::connect(address).unwrap())
            .collect();
        let mut accepted = 0;
        while accepted < clients.len() {
            let serve = |(), _, _| accepted += 1;
            listener.accept(|| Some(()), serve).await.unwrap();
        }
    });
}

#[test]
fn messages_arrive_in_their_order() {
    let sum = run(async |handle| {
        let (sender, mailbox) = mailbox(&handle).unwrap();
        let thread = std::thread::spawn(move || (0..1000).for_each(|n| sender.send(n)));
        for n in 0..1000 {
            assert_eq!(mailbox.receive().await.unwrap(), n);
        }
        thread.join().is_ok()
    });
    assert!(sum);
}

#[test]
fn one_failure_ends_both_futures() {
    run(async |handle| {
        let never = std::future::pending::<Result<(), &str>>();
        let fails = async { Err::<(), _>("broken") };
        assert_eq!(try_both(pin!(never), pin!(fails)).await, Err("broken"));
        drop(handle);
    });
}

/// What a wait asks that ends at `until`.
fn is_due(handle: &Handle, until: Clock) -> Option<()> {
    let due = handle.now() >= until;
    if !due {
        handle.remind_at(until);
    }
    due.then_some(())
}

#[test]
fn a_reminder_wakes_once_and_fails_no_wait() {
    run(async |handle| {
        let looks = Cell::new(0);
        let until = handle.now() + 20;
        handle.set_deadline(Duration::from_secs(60));
        let looked = || {
            looks.set(looks.get() + 1);
            is_due(&handle, until)
        };
        handle.wait_for(looked).await.unwrap();
        assert_eq!(looks.get(), 2);
    });
}

#[test]
fn a_reminder_that_was_taken_back_wakes_nobody_and_the_deadline_holds() {
    run(async |handle| {
        let looks = Cell::new(0);
        handle.set_deadline(Duration::from_millis(40));
        handle.remind_at(handle.now() + 10);
        handle.yield_now().await;
        handle.forget_reminder();
        let never = || {
            looks.set(looks.get() + 1);
            None::<()>
        };
        let error = handle.wait_for(never).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        assert_eq!(looks.get(), 2, "at first, and at the deadline");
    });
}

#[test]
fn a_reminder_that_was_taken_back_wakes_not_even_the_loop() {
    run(async |handle| {
        for deadline in [Some(Duration::from_secs(20)), None] {
            handle.clear_deadline();
            deadline.inspect(|time| handle.set_deadline(*time));
            handle.remind_at(handle.now() + 10);
            handle.yield_now().await;
            handle.forget_reminder();
            let sleep = handle.until_next_timer();
            assert_eq!(sleep.is_some(), deadline.is_some());
            assert!(sleep.is_none_or(|time| time.as_secs() > 10), "{sleep:?}");
        }
    });
}

#[test]
fn a_deadline_holds_behind_a_reminder_that_came() {
    run(async |handle| {
        let begun = handle.now();
        handle.set_deadline(Duration::from_millis(40));
        let clock = handle.clone();
        handle.spawn(async move {
            clock.sleep(Duration::from_secs(20)).await;
            panic!("the deadline was lost");
        });
        let reminded = handle.wait_for(|| is_due(&handle, begun + 10));
        reminded.await.unwrap();
        let error = handle.wait_for(|| None::<()>).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    });
}

#[test]
fn of_two_waits_of_one_task_each_is_reminded_in_time_and_takes_none_from_the_other() {
    run(async |handle| {
        let handle = &handle;
        for (a, b) in [(10, 1_000), (1_000, 10)] {
            let begun = handle.now();
            handle.set_deadline(Duration::from_secs(20));
            let lateness = async |wait| {
                let due = handle.wait_for(|| is_due(handle, begun + wait));
                due.await.unwrap();
                handle.forget_reminder();
                Ok::<_, std::io::Error>(handle.now() - begun - wait)
            };
            let both = try_both(pin!(lateness(a)), pin!(lateness(b))).await;
            let (a_late, b_late) = both.unwrap();
            let late = a_late.max(b_late);
            assert!(late < 500, "{a} and {b} ms: {a_late} and {b_late} ms late");
        }
    });
}

#[test]
fn a_client_that_goes_while_its_server_is_silent_is_noticed() {
    run(async |handle| {
        let (server, _silent) = pair(&handle).await;
        let (gone, client) = pair(&handle).await;
        assert!(client.source_is_unwatched());
        gone.reset_on_close();
        drop(gone);
        handle.set_deadline(Duration::from_secs(20));
        server.readable_or_broken_lazily(&client).await.unwrap();
        assert!(client.is_broken());
    });
}

/// What a peer receives, and how that ends.
async fn receive_all(peer: &TcpStream) -> (usize, std::io::Result<()>) {
    let mut buffer = vec![0; 64 * 1024];
    let mut received = 0;
    loop {
        if let Err(late) = peer.readable().await {
            return (received, Err(late));
        }
        match peer.try_receive(&mut buffer) {
            Ok(Some(0)) => return (received, peer.check_end()),
            Ok(bytes) => received += bytes.unwrap_or(0),
            Err(error) => return (received, Err(error)),
        }
    }
}

#[test]
fn a_peer_that_has_ended_too_gets_what_was_lost_before_a_reset() {
    for ends_first in [true, false] {
        run(async move |handle| {
            let (leaving, peer) = pair(&handle).await;
            handle.set_deadline(Duration::from_secs(20));
            let ends = async |stream: &TcpStream| {
                peer.shut_down_write();
                stream.readable().await.unwrap();
                assert_eq!(stream.try_receive(&mut [0]).unwrap(), Some(0));
            };
            let lossy = SockRef::from(&peer);
            // The kernel drops what comes to a socket with this filter.
            let nothing = SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0);
            if ends_first {
                ends(&leaving).await;
            }
            lossy.attach_filter(&[nothing]).unwrap();
            leaving.send_all(b"lost", false).await.unwrap();
            leaving.shut_down_write();
            leaving.reset_on_close();
            if !ends_first {
                ends(&leaving).await;
            }
            drop(leaving);
            lossy.detach_filter().unwrap();
            let (received, end) = receive_all(&peer).await;
            end.unwrap();
            assert_eq!(received, 4);
        });
    }
}

#[test]
fn a_peer_that_has_ended_too_and_takes_nothing_is_reset() {
    run(async |handle| {
        let (leaving, peer) = pair(&handle).await;
        handle.set_deadline(Duration::from_secs(20));
        let buffer = vec![7; 64 * 1024];
        let mut sent = 0;
        while let Some(bytes) = leaving.try_send(&buffer, false).unwrap() {
            sent += bytes;
        }
        peer.shut_down_write();
        leaving.readable().await.unwrap();
        assert_eq!(leaving.try_receive(&mut [0]).unwrap(), Some(0));
        leaving.shut_down_write();
        leaving.reset_on_close();
        drop(leaving);
        let (received, end) = receive_all(&peer).await;
        assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
        assert!(received < sent);
    });
}

#[test]
fn a_client_whose_server_answers_at_once_is_never_registered() {
    run(async |handle| {
        let (server, answering) = pair(&handle).await;
        let (_peer, client) = pair(&handle).await;
        answering.try_send(b"x", false).unwrap();
        handle.set_deadline(Duration::from_secs(20));
        server.readable_or_broken_lazily(&client).await.unwrap();
        assert!(client.source_is_unwatched());
    });
}

#[test]
fn a_listener_that_is_shut_refuses_who_comes_and_takes_who_has_begun() {
    run(async |handle| {
        let options = ListenOptions {
            backlog: 16,
            defer_accept: Some(Duration::from_secs(10)),
            ..ListenOptions::default()
        };
        let fd = TcpListener::open("127.0.0.1:0".parse().unwrap(), &options).unwrap();
        let address = rustix::net::getsockname(&fd).unwrap().try_into().unwrap();
        let listener = TcpListener::new(fd, &handle);
        let connect = |address: SocketAddr| std::net::TcpStream::connect(address);
        let begun = connect(address).unwrap();
        assert!(listener.is_in_handshake(), "it has not spoken");
        listener.shut().unwrap();
        let refused = connect(address).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        // The kernel asks for the ACK again.
        for _ in 0..4000 {
            if !listener.is_in_handshake() {
                break;
            }
            handle.sleep(Duration::from_millis(5)).await;
        }
        let accepted = Cell::new(None);
        let serve = |stream, peer| accepted.set(Some((stream, peer)));
        listener.accept_all(serve).unwrap();
        let (_stream, peer): (TcpStream, SocketAddr) = accepted.take().unwrap();
        assert_eq!(peer, begun.local_addr().unwrap());
    });
}
