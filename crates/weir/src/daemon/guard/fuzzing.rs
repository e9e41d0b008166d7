//! What fuzzing reaches of the program (crates/fuzz): those who ask a guard whose kernel half only remembers.

use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use axum::body::Bytes;
use weir_api::{Answer, ClassChange, Question};
use weir_config::{Environment, SynCookies};
use weir_core::class::Class;
use weir_core::listener::{ListenAddress, Listener};

use super::classes;
use crate::daemon::backend::fake::{Fake, socket};
use crate::daemon::session::Session;
use crate::failure::Code;
use crate::host::links::fake::link;
use crate::ipc::api::{keys, named};
use crate::ipc::control::{Client, read};
use crate::ipc::peer::{Asker, Peer};
use crate::ipc::reply::Refused;

/// Requests of one input at most: more show nothing new, and cost time.
const REQUESTS: usize = 16;
/// A user that owns no listening socket.
const NOBODY: u32 = 4_000_000_000;

/// A guard of port 80 with one class.
fn guard() -> Session<Fake> {
    let environment = Environment {
        syn_cookies: SynCookies::WhenNeeded,
        bpf_cookies: true,
        syn_filter: None,
    };
    let fake = Fake::default();
    fake.0.borrow_mut().sockets = vec![socket("0.0.0.0", 80)];
    let listeners = vec![Listener::new("web", ListenAddress { ip: None, port: 80 })];
    let session = Session::start(
        fake,
        environment,
        listeners,
        vec![Class::new("gold")],
        vec![link(1, "lo")],
    );
    session.expect("the fake takes every policy")
}

/// What must hold after each request.
fn is_sound(session: &Session<Fake>) {
    let names: Vec<&String> = session.classes().iter().map(|class| &class.name).collect();
    let distinct: std::collections::BTreeSet<&String> = names.iter().copied().collect();
    assert_eq!(
        names.len(),
        distinct.len(),
        "each class has a name of its own"
    );
    for name in names.iter().copied() {
        assert!(
            weir_config::parse_name(name).is_ok(),
            "{name:?} is shown on terminals"
        );
    }
    let reports = session.class_reports().expect("classes have reports");
    assert_eq!(reports.len(), names.len() + 1, "and `other` has one");
    serde_json::to_string(&reports).expect("reports are JSON");
}

/// Asks for a change.
fn changes(session: &mut Session<Fake>, change: &ClassChange, asker: Asker, may: bool) {
    assert!(!change.to_string().is_empty());
    let before = session.classes().to_vec();
    match classes::change(session, change, asker) {
        Ok(_) => assert!(may, "nobody may write no class"),
        Err(failure) => {
            assert!(failure.code != Code::Failed, "{failure}");
            assert_eq!(session.classes(), before, "what is refused changes nothing");
        }
    }
}

/// Lines of a method, a class's name and a body, as of the API; the first byte says whether root asks.
///
/// # Panics
/// A request that is refused has changed something, or what is in force is not sound.
pub fn api(data: &[u8]) {
    let Some((&who, lines)) = data.split_first() else {
        return;
    };
    let is_root = who % 4 != 0;
    let asker = Asker::Api(Peer {
        uid: if is_root { 0 } else { NOBODY },
        pid: None,
    });
    let mut session = guard();
    for line in lines.split(|&byte| byte == b'\n').take(REQUESTS) {
        let mut parts = line.splitn(3, |&byte| byte == b' ');
        let method = parts.next().unwrap_or_default();
        let name = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
        let body = Ok(Bytes::copy_from_slice(parts.next().unwrap_or_default()));
        let change = match method {
            b"DELETE" => Ok(ClassChange::Remove { name }),
            b"POST" => named(body).map(|(name, keys)| ClassChange::Add { name, keys }),
            b"PUT" => keys(body).map(|keys| ClassChange::Put { name, keys }),
            _ => keys(body).map(|keys| ClassChange::Set { name, keys }),
        };
        let change = match change {
            Ok(change) => change,
            Err(Refused(status, failure)) => {
                assert!(status.is_client_error() && !failure.causes.is_empty());
                continue;
            }
        };
        changes(&mut session, &change, asker, is_root);
        is_sound(&session);
    }
}

/// Lines of clients of the control socket, one after the other.
///
/// # Panics
/// A request has no answer that its client can read, or what is in force is not sound.
pub fn control(data: &[u8]) {
    let mut session = guard();
    for line in data.split_inclusive(|&byte| byte == b'\n').take(REQUESTS) {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        // Longer ones are refused before they are read whole; the socket's buffer holds these.
        (&theirs)
            .write_all(&line[..line.len().min(64 << 10)])
            .expect("the buffer takes it");
        theirs.shutdown(Shutdown::Write).expect("a socket");
        let client = Client::on(ours);
        let Ok(question) = client.question() else {
            continue;
        };
        let text = serde_json::to_string(&question).expect("questions are JSON");
        let again: Question = serde_json::from_str(&text).expect("what is written is read");
        assert_eq!(again, question);
        let answer = match question {
            Question::Class(change) => {
                changes(&mut session, &change, client.asker(), true);
                session.class_reports().map(Answer::Classes)
            }
            Question::Exec(report) => {
                let told = session.exec_told(report, Instant::now());
                told.map(|()| Answer::Classes(Vec::new()))
            }
            _ => continue,
        };
        is_sound(&session);
        client.answer(&answer);
        drop(client);
        let mut said = String::new();
        BufReader::new(theirs)
            .read_line(&mut said)
            .expect("an answer");
        assert_eq!(read(&said).expect("a client reads it"), answer);
    }
}
