//! A service that does on the wire what the test says, one answer per connection.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::Value;

/// What happens to a connection.
pub(crate) enum Answer {
    /// These bytes, after the request has been read.
    Bytes(Vec<u8>),
    /// The scores of a function of the request's body.
    Scores(fn(&Value) -> Vec<f64>),
    /// The connection is reset while an answer is on its way: whoever closes a socket with unread bytes resets it.
    Reset,
    /// What a server without TLS says to a client that begins with it.
    NoTls,
    /// The head of an answer, and then a byte at a time without end, none of them long after the last.
    Drip,
}

/// An answer with this first line, headers and body, and the body's length.
pub(crate) fn answer(status: &str, headers: &str, body: &str) -> Answer {
    let length = body.len();
    Answer::Bytes(format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\n\r\n{body}").into_bytes())
}

/// A reply of the protocol.
pub(crate) fn reply(body: &str) -> Answer {
    answer("200 OK", "Content-Type: application/json\r\n", body)
}

/// A request as it arrived.
pub(crate) struct Received {
    /// First line and headers.
    pub(crate) head: String,
    pub(crate) body: Value,
}

/// A service on a free port. When all answers are given it listens no more.
pub(crate) struct Service {
    pub(crate) address: String,
    received: Arc<Mutex<Vec<Received>>>,
    connections: Arc<Mutex<usize>>,
}

impl Service {
    pub(crate) fn start(answers: Vec<Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let service = Self {
            address: listener.local_addr().expect("its address").to_string(),
            received: Arc::default(),
            connections: Arc::default(),
        };
        let (received, connections) = (Arc::clone(&service.received), Arc::clone(&service.connections));
        thread::spawn(move || {
            for answer in answers {
                let (stream, _) = listener.accept().expect("a connection");
                *connections.lock().expect("counted") += 1;
                // A client that hangs up is part of some tests.
                let _ = serve(stream, answer, &received);
            }
        });
        service
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/score", self.address)
    }

    /// How many connections there were.
    pub(crate) fn connections(&self) -> usize {
        *self.connections.lock().expect("counted")
    }

    /// The requests that were read whole.
    pub(crate) fn received(&self) -> Vec<Received> {
        std::mem::take(&mut *self.received.lock().expect("recorded"))
    }
}

fn serve(mut stream: TcpStream, answer: Answer, received: &Mutex<Vec<Received>>) -> std::io::Result<()> {
    let read = |stream: &TcpStream| -> std::io::Result<Value> {
        let request = read_request(&mut BufReader::new(stream))?;
        let body = request.body.clone();
        // Recorded before the answer, so that a client that has the answer finds it.
        received.lock().expect("recorded").push(request);
        Ok(body)
    };
    match answer {
        Answer::Bytes(bytes) => {
            read(&stream)?;
            stream.write_all(&bytes)
        }
        Answer::Scores(function) => {
            let scores = serde_json::json!({ "scores": function(&read(&stream)?) }).to_string();
            write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{scores}",
                scores.len()
            )
        }
        Answer::Reset => {
            stream.read_exact(&mut [0])?;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"scores\"")
        }
        Answer::NoTls => {
            let hello = stream.read(&mut [0; 4096])?;
            assert!(hello > 0, "the client says something");
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")?;
            stream.read_to_end(&mut Vec::new()).map(drop)
        }
        Answer::Drip => {
            read(&stream)?;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")?;
            // Until the client has had enough.
            loop {
                stream.write_all(b" ")?;
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

fn read_request(stream: &mut impl BufRead) -> std::io::Result<Received> {
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let start = head.len();
        stream.read_line(&mut head)?;
        let line = head[start..].trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().expect("a number of bytes");
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    let body = serde_json::from_slice(&body).expect("a JSON request");
    Ok(Received { head, body })
}
