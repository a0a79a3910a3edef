//! What iceoryx2 takes for the calls that package endpoint is measured with, between two processes: this one, which
//! asks, and itself started again, which answers.
//!
//!     iceoryx2-peer call-spin|call-event
//!     iceoryx2-peer results BYTES
//!
//! Each line on the standard input is a number of calls to make; it is answered with what they took, in nanoseconds, on
//! one line. `call` carries 64 bytes there and back, both sides spinning or both asleep until an event. `results`
//! answers with a loaned sample of that many bytes, filled with memset, of which the asker reads both ends. Its figures
//! do not include the memset, whose duration is in the sample.

use iceoryx2::prelude::*;
use std::io::{BufRead, Write};
use std::process::{Child, Command};
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const CHILD: &str = "ICEORYX2_PEER_OF";

fn main() -> Outcome<()> {
    set_log_level(LogLevel::Error);
    let args: Vec<String> = std::env::args().collect();
    let parent = std::env::var(CHILD).ok();
    let id = parent.clone().unwrap_or_else(|| std::process::id().to_string());
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let answers = parent.is_some();
    match args.get(1).map(String::as_str) {
        Some("call-spin") => calls(&node, &id, false, answers),
        Some("call-event") => calls(&node, &id, true, answers),
        Some("results") if args.len() > 2 => results(&node, &id, args[2].parse()?, answers),
        _ => Err("usage: iceoryx2-peer call-spin|call-event|results BYTES".into()),
    }
}

fn service(id: &str, what: &str) -> Outcome<ServiceName> {
    Ok(format!("peers/{id}/{what}").as_str().try_into()?)
}

/// Starts this program again to answer. The answering side ends when a call carries the number 0.
fn start(id: &str) -> Outcome<Child> {
    let args: Vec<String> = std::env::args().collect();
    Ok(Command::new(std::env::current_exe()?).args(&args[1..]).env(CHILD, id).spawn()?)
}

/// Makes calls as the standard input says.
/// A call returns the nanoseconds that do not count.
fn measure(mut call: impl FnMut(u64) -> Outcome<u64>) -> Outcome<()> {
    for line in std::io::stdin().lock().lines() {
        let mut took = String::new();
        for i in 0..line?.trim().parse()? {
            let start = Instant::now();
            let other = call(i + 1)?;
            took.push_str(&format!("{} ", start.elapsed().as_nanos() - u128::from(other)));
        }
        println!("{}", took.trim_end());
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn calls(node: &Node<ipc::Service>, id: &str, asleep: bool, answers: bool) -> Outcome<()> {
    let calls = node.service_builder(&service(id, "calls")?).request_response::<[u64; 8], [u64; 8]>().open_or_create()?;
    let there = node.service_builder(&service(id, "there")?).event().open_or_create()?;
    let back = node.service_builder(&service(id, "back")?).event().open_or_create()?;
    if answers {
        let server = calls.server_builder().create()?;
        let (wait, wake) = (there.listener_builder().create()?, back.notifier_builder().create()?);
        loop {
            if asleep {
                wait.blocking_wait(|_| {})?;
            }
            while let Some(request) = server.receive()? {
                let data = *request;
                if data[0] == 0 {
                    return Ok(());
                }
                request.send_copy(data)?;
                if asleep {
                    wake.notify()?;
                }
            }
            std::hint::spin_loop();
        }
    }
    let client = calls.client_builder().create()?;
    let (wait, wake) = (back.listener_builder().create()?, there.notifier_builder().create()?);
    let mut child = start(id)?;
    while calls.dynamic_config().number_of_servers() == 0 || there.dynamic_config().number_of_listeners() == 0 {
        std::thread::yield_now();
    }
    measure(|i| {
        let pending = client.send_copy([i; 8])?;
        if asleep {
            wake.notify()?;
        }
        loop {
            if asleep {
                wait.blocking_wait(|_| {})?;
            }
            if let Some(answer) = pending.receive()? {
                return if answer[7] == i { Ok(0) } else { Err("another answer came".into()) };
            }
            std::hint::spin_loop();
        }
    })?;
    let _ = client.send_copy([0; 8])?;
    wake.notify()?;
    child.wait()?;
    Ok(())
}

fn results(node: &Node<ipc::Service>, id: &str, bytes: usize, answers: bool) -> Outcome<()> {
    let calls = node.service_builder(&service(id, "results")?).request_response::<u64, [u8]>().open_or_create()?;
    if answers {
        let server = calls.server_builder().initial_max_slice_len(bytes).max_loaned_responses_per_request(2).create()?;
        loop {
            let Some(request) = server.receive()? else {
                std::hint::spin_loop();
                continue;
            };
            if *request == 0 {
                return Ok(());
            }
            let mut answer = request.loan_slice_uninit(bytes)?;
            let start = Instant::now();
            let mut answer = unsafe {
                std::ptr::write_bytes(answer.payload_mut().as_mut_ptr() as *mut u8, *request as u8, bytes);
                answer.assume_init()
            };
            answer.payload_mut()[8..16].copy_from_slice(&(start.elapsed().as_nanos() as u64).to_ne_bytes());
            answer.send()?;
        }
    }
    let client = calls.client_builder().create()?;
    let mut child = start(id)?;
    while calls.dynamic_config().number_of_servers() == 0 {
        std::thread::yield_now();
    }
    measure(|i| {
        let pending = client.send_copy(i)?;
        loop {
            if let Some(answer) = pending.receive()? {
                let data = answer.payload();
                let whole = data.len() == bytes && data[0] == i as u8 && data[bytes - 1] == i as u8;
                let fill = u64::from_ne_bytes(data[8..16].try_into()?);
                return if whole { Ok(fill) } else { Err("another answer came".into()) };
            }
            std::hint::spin_loop();
        }
    })?;
    let _ = client.send_copy(0)?;
    child.wait()?;
    Ok(())
}
