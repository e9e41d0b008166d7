//! A runtime directory with a config file, a running `weir proxy`, servers and clients.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Deref;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::common::{Folder, PATIENCE};

/// A server that begins each answer with its own letter, and then sends back what it gets.
pub fn echo(letter: u8) -> SocketAddr {
    echo_at("127.0.0.1:0".parse().unwrap(), letter)
}

/// One that listens there.
pub fn echo_at(address: SocketAddr, letter: u8) -> SocketAddr {
    let listener = TcpListener::bind(address).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut byte = [0];
                while let Ok(1) = stream.read(&mut byte) {
                    if stream.write_all(&[letter, byte[0]]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}

/// Sends a byte; the server's letter, if its answer is whole.
pub fn ask(stream: &mut TcpStream) -> std::io::Result<u8> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"x")?;
    let mut answer = [0; 2];
    stream.read_exact(&mut answer)?;
    assert_eq!(answer[1], b'x');
    Ok(answer[0])
}

/// A runtime directory and a config file.
pub struct Bed {
    folder: Folder,
}

/// A running `weir proxy`.
pub struct Running {
    pub child: Child,
    stdout: BufReader<ChildStdout>,
    pub address: SocketAddr,
}

impl Deref for Bed {
    type Target = Folder;

    fn deref(&self) -> &Folder {
        &self.folder
    }
}

impl Bed {
    pub fn new(name: &str) -> Bed {
        let folder = Folder::new(&format!("proxy-{name}"));
        Bed { folder }
    }

    /// Writes a config file with a tcp proxy to this backend; `keys` are added.
    pub fn configure(&self, backend: SocketAddr, keys: &str) {
        let text = format!(
            "[[proxy]]\nname = \"edge\"\nlisten = \"127.0.0.1:0\"\nmode = \"tcp\"\n\
             backends = [\"{backend}\"]\n{keys}\n"
        );
        self.write_config(&text);
    }

    pub fn start(&self, flags: &str) -> Running {
        Bed::started(self.command(&format!("proxy --config weir.toml {flags}")))
    }

    /// The proxy of the config file, in a process whose shell has run these words.
    pub fn limited(&self, ulimit: &str) -> Command {
        let weir = self.command("proxy --config weir.toml");
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("{ulimit}; exec \"$@\""), "sh"])
            .arg(weir.get_program())
            .args(weir.get_args())
            .current_dir(&*self.path);
        command
    }

    pub fn started(mut command: Command) -> Running {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let (_, address) = line.split_once("proxy on ").expect(&line);
        let address = address.split(' ').next().unwrap().parse().unwrap();
        Running {
            child,
            stdout,
            address,
        }
    }
}

impl Running {
    pub fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// What it says until its end, and whether that was well.
    pub fn end(&mut self) -> (String, bool) {
        let mut said = String::new();
        self.stdout.read_to_string(&mut said).unwrap();
        (said, self.child.wait().unwrap().success())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A counter in a table for people.
pub fn count(text: &str, counter: &str) -> u64 {
    let mut lines = text.lines().map(|line| line.split_whitespace());
    let values = lines.find_map(|mut words| (words.next() == Some(counter)).then_some(words));
    values.unwrap().next().unwrap().parse().unwrap()
}

/// Clients that connect, ask once and close, again and again.
pub struct Load {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    threads: Vec<thread::JoinHandle<Vec<std::io::Error>>>,
}

impl Load {
    pub fn start(address: SocketAddr) -> Load {
        let (stop, served) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let client = || {
            let (stop, served) = (stop.clone(), served.clone());
            thread::spawn(move || {
                let mut errors = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    match TcpStream::connect(address).and_then(|mut stream| ask(&mut stream)) {
                        Ok(_) => drop(served.fetch_add(1, Ordering::Relaxed)),
                        Err(error) => errors.push(error),
                    }
                }
                errors
            })
        };
        let threads = (0..8).map(|_| client()).collect();
        Load {
            stop,
            served,
            threads,
        }
    }

    /// Waits until so many more have been served.
    pub fn serve(&self, more: usize) {
        let goal = self.served.load(Ordering::Relaxed) + more;
        let end = Instant::now() + PATIENCE;
        while self.served.load(Ordering::Relaxed) < goal {
            assert!(
                Instant::now() < end,
                "not {more} served within {PATIENCE:?}"
            );
            thread::yield_now();
        }
    }

    pub fn errors(self) -> Vec<std::io::Error> {
        self.stop.store(true, Ordering::Relaxed);
        let join = |thread: thread::JoinHandle<_>| thread.join().unwrap();
        self.threads.into_iter().flat_map(join).collect()
    }
}
