//! Servers and clients that people run.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use weir_testbed::bed::Layout;
use weir_testbed::cpu::pin_this_thread;
use weir_testbed::needs;

use crate::bed::{RULE, THERE_V4, run, there, time_waits};
use crate::common::{Bed, PORT, output, until, within};

const TIMES: usize = 20;

/// Killed on drop with its workers.
pub struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = killpg(Pid::from_raw(self.0.id() as i32), Signal::SIGKILL);
        let _ = self.0.wait();
    }
}

/// Server and client have a CPU each, as on two machines. On one CPU a system call of the server's runs the client's
/// answers as well: the RST would come before the server's socket is in TIME-WAIT.
pub fn start_there(bed: &Bed, mut command: Command) -> Started {
    let layout = Layout::of_this_machine();
    bed.here()
        .steer_receive_work("veth0", layout.client_cpu)
        .unwrap();
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    let mut server = Started(within(bed.there(), || {
        pin_this_thread(layout.server_cpu).unwrap();
        command.spawn().unwrap()
    }));
    until("the server listens", || {
        let exit = server.0.try_wait().unwrap();
        assert!(exit.is_none(), "the server ended: {exit:?} {command:?}");
        let listening = output(bed.there(), "ss", &["-tlnH", &format!("sport = :{PORT}")]);
        (!listening.trim().is_empty()).then_some(())
    });
    server
}

fn nginx(bed: &Bed) -> Command {
    let file = bed.folder.path().join("nginx.conf");
    let folder = bed.folder.path().display();
    let config = format!(
        "daemon off; master_process off; user root; pid {folder}/nginx.pid; error_log stderr;\n\
         events {{}}\n\
         http {{ access_log off; keepalive_timeout 0; server {{ listen {PORT}; return 200 hello; }} }}\n"
    );
    std::fs::write(&file, config).unwrap();
    let mut nginx = needs::command("nginx");
    nginx.args(["-e", "stderr", "-c"]).arg(file);
    nginx
}

/// Waits for the server to close, though it knows the length of the reply.
fn curl(bed: &Bed) -> String {
    let url = format!("http://{}/", there(THERE_V4));
    output(
        bed.here(),
        "curl",
        &[
            "-sS",
            "--fail",
            "--max-time",
            "20",
            "--ignore-content-length",
            &url,
        ],
    )
}

/// Likewise.
fn python(bed: &Bed) -> String {
    let program = format!(
        "import http.client\n\
         c = http.client.HTTPConnection('{THERE_V4}', {PORT}, timeout=20)\n\
         c.request('GET', '/')\n\
         reply = c.getresponse()\n\
         reply.length = None\n\
         print(reply.read().decode(), end='')\n\
         c.close()\n"
    );
    output(bed.here(), "/usr/bin/python3", &["-c", &program])
}

fn frees(server: impl Fn(&Bed) -> Command) {
    let Some(bed) = Bed::new() else { return };
    if !needs::programs(&["nginx", "python3", "curl"]) {
        return;
    }
    let command = server(&bed);
    let _server = start_there(&bed, command);
    for client in [curl, python] {
        assert!(client(&bed).contains("hello"));
    }
    until("both are closed", || {
        (time_waits(bed.there()) == 2).then_some(())
    });
    let _weir = run(&bed, RULE);
    for client in [curl, python] {
        for _ in 0..TIMES {
            assert!(client(&bed).contains("hello"));
        }
    }
    bed.figure_becomes("swapped", 2 * TIMES as u64);
    // Server and client share a machine: once in a while the RST still comes before the server's socket is in TIME-WAIT.
    let left = time_waits(bed.there()) - 2;
    assert!(left <= 1, "{left} left");
    assert_eq!(time_waits(bed.here()), 0);
}

#[test]
fn nginx_that_closes_first_is_rid_of_its_time_wait() {
    frees(nginx);
}

/// HTTP/1.0: the server's close is the reply's end.
#[test]
fn a_python_server_that_closes_first_is_rid_of_its_time_wait() {
    frees(|bed| {
        std::fs::write(bed.folder.path().join("index.html"), "hello").unwrap();
        let mut python = needs::command("/usr/bin/python3");
        let port = PORT.to_string();
        python.args(["-m", "http.server", &port, "--directory"]);
        python.arg(bed.folder.path());
        python
    });
}
