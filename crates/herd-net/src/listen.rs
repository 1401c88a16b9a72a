//! Listening sockets.

use herd_core::limits::{KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES};
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

/// Connections the kernel may hold before they are accepted; it cuts this to its own limit (`somaxconn`). A herd's
/// clients may all come back at once.
const BACKLOG: i32 = 65_535;

/// Listens on `addr`, without blocking. Sockets accepted from it inherit its keepalive: what is gone without a word
/// is found out about by the kernel.
pub fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if addr.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(KEEPALIVE_IDLE_S))
        .with_interval(Duration::from_secs(KEEPALIVE_INTERVAL_S))
        .with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::SockRef;
    use std::net::TcpStream;

    #[test]
    fn accepted_sockets_are_kept_alive() {
        let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
        listener.set_nonblocking(false).expect("a socket may block");
        let _client = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (accepted, _) = listener.accept().expect("a client came");
        let socket = SockRef::from(&accepted);
        assert!(socket.keepalive().expect("an option"));
        assert_eq!(socket.tcp_keepalive_time().expect("an option").as_secs(), KEEPALIVE_IDLE_S);
        assert_eq!(socket.tcp_keepalive_interval().expect("an option").as_secs(), KEEPALIVE_INTERVAL_S);
    }
}
