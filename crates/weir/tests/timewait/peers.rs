//! Servers and clients that people run.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use weir_testbed::needs;

use crate::bed::{RULE, THERE_V4, run, there, time_waits};
use crate::common::{Bed, PORT, output, until, within};

const TIMES: usize = 20;

/// Killed on drop with its workers.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = killpg(Pid::from_raw(self.0.id() as i32), Signal::SIGKILL);
        let _ = self.0.wait();
    }
}

fn start_there(bed: &Bed, mut command: Command) -> Started {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    let mut server = Started(within(bed.there(), || command.spawn().unwrap()));
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

fn curl(bed: &Bed) -> String {
    let url = format!("http://{}/", there(THERE_V4));
    output(
        bed.here(),
        "curl",
        &["-sS", "--fail", "--max-time", "20", &url],
    )
}

fn python(bed: &Bed) -> String {
    let program = format!(
        "import http.client\n\
         c = http.client.HTTPConnection('{THERE_V4}', {PORT}, timeout=20)\n\
         c.request('GET', '/')\n\
         print(c.getresponse().read().decode(), end='')\n\
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
    // A client that knows the length of the reply may close first.
    let all = || time_waits(bed.there()) + time_waits(bed.here());
    until("both are closed", || (all() == 2).then_some(()));
    let (there, here) = (time_waits(bed.there()), time_waits(bed.here()));
    let _weir = run(&bed, RULE);
    for client in [curl, python] {
        for _ in 0..TIMES {
            assert!(client(&bed).contains("hello"));
        }
    }
    let swapped = || bed.figure("swapped") as usize;
    let own = || time_waits(bed.here()) - here;
    until("all are closed", || {
        (swapped() + own() == 2 * TIMES).then_some(())
    });
    // On one machine the RST may meet a server that is still in close(), and is lost.
    let left = time_waits(bed.there()) - there;
    assert!(
        swapped() >= TIMES && left <= 1,
        "{} swapped, {left} left",
        swapped()
    );
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
