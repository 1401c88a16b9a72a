//! What is left of a frame is, packet for packet, what a wire would have carried: compared with a cutter of its own.

use super::*;
use crate::relay::path::Random;

/// A TCP or UDP packet of the wire, taken apart; two are the same when all that a receiver sees is.
#[derive(Debug, PartialEq)]
struct Packet {
    identification: u16,
    sequence: u32,
    flags: u8,
    payload: Vec<u8>,
}

/// A random frame of many packets, or of one, with options in both headers and every flag that matters.
fn random_frame(random: &mut Random, udp: bool) -> Vec<u8> {
    let mut pick = |most: usize| usize::try_from(random.next() % (most as u64 + 1)).expect("small");
    let ip_bytes = 20 + 4 * pick(10);
    let transport_bytes = if udp { 8 } else { 20 + 4 * pick(10) };
    let segment_bytes = 1 + pick(1_500);
    let most = (65_535 - ip_bytes - transport_bytes).min(segment_bytes * 60);
    let payload_bytes = pick(most);
    let mut frame: Vec<u8> =
        (0..VNET_BYTES + ip_bytes + transport_bytes + payload_bytes).map(|_| pick(255) as u8).collect();
    let ecn = if !udp && pick(1) == 1 { GSO_ECN } else { 0 };
    frame[0] = NEEDS_CSUM;
    frame[1] = if udp { GSO_UDP_L4 } else { GSO_TCPV4 | ecn };
    frame[2..4].copy_from_slice(&((ip_bytes + transport_bytes) as u16).to_le_bytes());
    frame[4..6].copy_from_slice(&(segment_bytes as u16).to_le_bytes());
    frame[6..8].copy_from_slice(&(ip_bytes as u16).to_le_bytes());
    frame[8..10].copy_from_slice(&(if udp { 6_u16 } else { 16 }).to_le_bytes());
    let (ip, transport) = frame[VNET_BYTES..].split_at_mut(ip_bytes);
    ip[0] = 0x40 | (ip_bytes / 4) as u8;
    put16(ip, 2, (ip_bytes + transport_bytes + payload_bytes) as u16);
    put16(ip, 6, 0x4000);
    ip[9] = if udp { PROTOCOL_UDP } else { PROTOCOL_TCP };
    put16(ip, 10, 0);
    let checksum = !fold(sum(ip));
    put16(ip, 10, checksum);
    if udp {
        put16(transport, 4, (8 + payload_bytes) as u16);
        put16(transport, 6, pseudo(ip, 8 + payload_bytes));
    } else {
        transport[12] = (transport_bytes / 4 * 16) as u8;
        put16(transport, 16, pseudo(ip, transport_bytes + payload_bytes));
        transport[13] = if ecn > 0 { transport[13] | TCP_CWR } else { transport[13] & !TCP_CWR };
    }
    frame
}

fn pseudo(ip: &[u8], transport_bytes: usize) -> u16 {
    let words = [12, 14, 16, 18].map(|at| u32::from(be16(ip, at)));
    let mut all = words.iter().sum::<u32>() + u32::from(ip[9]) + transport_bytes as u32;
    while all >> 16 > 0 {
        all = (all & 0xffff) + (all >> 16);
    }
    all as u16
}

/// Cuts a frame as a card does: completes the checksums of every packet, checks them as a receiver does, and takes the
/// packets apart.
fn on_the_wire(frame: &[u8]) -> Vec<Packet> {
    let ip = &frame[VNET_BYTES..];
    let ip_bytes = usize::from(ip[0] & 15) * 4;
    assert_eq!(usize::from(be16(ip, 2)), ip.len(), "the packet's length is the frame's");
    assert_eq!(fold(sum(&ip[..ip_bytes])), 0xffff, "the header's checksum is good");
    assert_eq!(frame[0] & NEEDS_CSUM, NEEDS_CSUM);
    let (start, offset) = (usize::from(le16(frame, 6)), usize::from(le16(frame, 8)));
    assert_eq!(start, ip_bytes);
    let transport = &ip[ip_bytes..];
    assert_eq!(be16(transport, offset), pseudo(ip, transport.len()), "the open checksum is the pseudo-header's");
    let udp = ip[9] == PROTOCOL_UDP;
    assert_eq!(offset, if udp { 6 } else { 16 });
    let headers = if udp { 8 } else { usize::from(transport[12] >> 4) * 4 };
    if udp {
        assert_eq!(usize::from(be16(transport, 4)), transport.len());
    }
    verify_completed(ip, ip_bytes, offset);
    let payload = &transport[headers..];
    let segment = if frame[1] == GSO_NONE { payload.len().max(1) } else { usize::from(le16(frame, 4)) };
    let count = payload.len().div_ceil(segment).max(1);
    (0..count).map(|index| packet(ip, transport, udp, payload, segment, index, count)).collect()
}

fn verify_completed(ip: &[u8], ip_bytes: usize, offset: usize) {
    let mut transport = ip[ip_bytes..].to_vec();
    let checksum = !fold(sum(&transport));
    put16(&mut transport, offset, checksum);
    let pseudo = u64::from(pseudo(ip, transport.len()));
    assert_eq!(fold(sum(&transport) + pseudo), 0xffff, "completed in software, the checksum is good");
}

fn packet(ip: &[u8], tcp: &[u8], udp: bool, payload: &[u8], segment: usize, index: usize, count: usize) -> Packet {
    let start = (index * segment).min(payload.len());
    let mut flags = tcp.get(13).copied().unwrap_or(0);
    if index + 1 < count {
        flags &= !(TCP_FIN | TCP_PSH);
    }
    if index > 0 {
        flags &= !TCP_CWR;
    }
    let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]).wrapping_add(start as u32);
    Packet {
        identification: be16(ip, 4).wrapping_add(index as u16),
        sequence: if udp { 0 } else { sequence },
        flags: if udp { 0 } else { flags },
        payload: payload[start..(start + segment).min(payload.len())].to_vec(),
    }
}

/// Runs of what survives; every share of survivors occurs, none and all too.
fn random_runs(random: &mut Random, packets: u32) -> Vec<Range<u32>> {
    let share = random.next() % 11;
    let mut runs: Vec<Range<u32>> = Vec::new();
    for packet in 0..packets {
        if random.next() % 10 < share {
            match runs.last_mut() {
                Some(run) if run.end == packet => run.end += 1,
                _ => runs.push(packet..packet + 1),
            }
        }
    }
    runs
}

fn written(piece: &Piece<'_>) -> Vec<u8> {
    let mut bytes = vec![0; piece.frame_bytes()];
    piece.write_to(&mut bytes);
    bytes
}

#[test]
fn pieces_are_on_the_wire_exactly_the_survivors_of_the_whole() {
    let mut random = Random::new(4);
    for round in 0..3_000 {
        let frame = random_frame(&mut random, round % 4 == 0);
        let shape = parse(&frame).expect("a good frame");
        let whole = on_the_wire(&frame);
        assert_eq!(whole.len(), shape.load.packets as usize);
        let headers = shape.headers_bytes - VNET_BYTES + 14;
        let bytes: usize = whole.iter().map(|packet| headers + packet.payload.len()).sum();
        assert_eq!(bytes as u64, shape.load.bytes(), "each packet has all headers and an Ethernet header");

        let runs = random_runs(&mut random, shape.load.packets);
        let mut wanted: Vec<Option<Packet>> = whole.into_iter().map(Some).collect();
        let pieces: Vec<Piece<'_>> = split(&frame, &shape, &runs).collect();
        assert_eq!(pieces.len(), runs.len());
        for (piece, run) in pieces.iter().zip(&runs) {
            let bytes = written(piece);
            let wanted: Vec<Packet> =
                run.clone().map(|packet| wanted[packet as usize].take().expect("each once")).collect();
            assert_eq!(on_the_wire(&bytes), wanted, "round {round}, packets {run:?}");
            assert_eq!(piece.load, shape.load.part(run));
            assert_eq!(piece.load.bytes(), shape.load.bytes_of(run));
            if shape.load.packets > 1 {
                check_virtio(&bytes, &frame, run);
                assert_eq!(parse(&bytes).expect("a piece is a good frame").load, piece.load);
            }
        }
    }
}

fn check_virtio(piece: &[u8], whole: &[u8], run: &Range<u32>) {
    if run.len() == 1 {
        assert_eq!((piece[1], le16(piece, 4)), (GSO_NONE, 0), "one packet is no longer segmented");
    } else {
        let ecn = if run.start == 0 { whole[1] & GSO_ECN } else { 0 };
        assert_eq!((piece[1], le16(piece, 4)), (whole[1] & !GSO_ECN | ecn, le16(whole, 4)));
    }
}

#[test]
fn a_frame_of_which_all_is_left_is_the_frame() {
    let mut random = Random::new(5);
    for _ in 0..200 {
        let frame = random_frame(&mut random, false);
        let shape = parse(&frame).expect("a good frame");
        let all = 0..shape.load.packets;
        let pieces: Vec<Vec<u8>> = split(&frame, &shape, std::slice::from_ref(&all)).map(|p| written(&p)).collect();
        let [piece] = &pieces[..] else { panic!("one run, one piece") };
        assert_eq!(piece[VNET_BYTES..], frame[VNET_BYTES..]);
    }
}

#[test]
fn the_kernels_own_frame_is_understood() {
    // 10 bytes virtio, 20 IPv4, 32 TCP, 44 segments of 1448 bytes and one of 100.
    let payload = 44 * 1_448 + 100;
    let mut frame = vec![0; VNET_BYTES + 52 + payload];
    frame[..10].copy_from_slice(&[1, 1, 52, 0, 0xa8, 5, 20, 0, 16, 0]);
    let ip = &mut frame[VNET_BYTES..];
    ip[0] = 0x45;
    put16(ip, 2, (52 + payload) as u16);
    ip[9] = PROTOCOL_TCP;
    ip[16..20].copy_from_slice(&[10, 2, 0, 1]);
    ip[32] = 8 << 4;
    let shape = parse(&frame).expect("a good frame");
    assert_eq!(shape.destination, Ipv4Addr::new(10, 2, 0, 1));
    assert_eq!(shape.load, Load { packets: 45, packet_bytes: 1_514, last_bytes: 166 });
}

#[test]
fn padding_behind_the_packet_counts_for_nothing() {
    let mut random = Random::new(6);
    let frame = random_frame(&mut random, false);
    let shape = parse(&frame).expect("a good frame");
    let padded = [&frame[..], &[0; 30]].concat();
    assert_eq!(parse(&padded), Ok(shape));
    let all = 0..shape.load.packets;
    let piece = split(&padded, &shape, std::slice::from_ref(&all)).next().expect("one run").frame_bytes();
    assert_eq!(piece, frame.len());
}

#[test]
fn what_cannot_be_is_refused() {
    assert_eq!(parse(&[]), Err(Unfit::Malformed));
    assert_eq!(parse(&[0; 10]), Err(Unfit::Malformed));
    let mut six = [0; 50];
    six[VNET_BYTES] = 0x60;
    assert_eq!(parse(&six), Err(Unfit::Ipv6));
    let good = random_frame(&mut Random::new(7), false);
    let broken: [(&str, usize, &[u8]); 8] = [
        ("segments of nothing", 4, &[0, 0]),
        ("segmented as something unknown", 1, &[9]),
        ("segmented as UDP", 1, &[GSO_UDP_L4]),
        ("header shorter than any", VNET_BYTES, &[0x44]),
        ("longer than the frame", VNET_BYTES + 2, &[0xff, 0xff]),
        ("shorter than its header", VNET_BYTES + 2, &[0, 19]),
        ("a first fragment", VNET_BYTES + 6, &[0x20, 0]),
        ("a later fragment", VNET_BYTES + 6, &[0, 1]),
    ];
    for (what, at, bytes) in broken {
        let mut frame = good.clone();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        assert_eq!(parse(&frame), Err(Unfit::Malformed), "{what}");
    }
}

/// Random bytes, and good frames with a few bytes turned: nothing panics, and what is understood can be split.
#[test]
fn no_bytes_break_it() {
    let mut random = Random::new(8);
    let mut understood = 0;
    for round in 0..30_000_u64 {
        let mut frame = if round % 2 == 0 {
            (0..random.next() % 200).map(|_| random.next() as u8).collect()
        } else {
            random_frame(&mut random, round % 4 == 1)
        };
        if round % 2 == 0 && frame.len() > VNET_BYTES {
            frame[VNET_BYTES] = 0x40 | frame[VNET_BYTES] & 15;
        }
        for _ in 0..random.next() % 4 {
            let at = random.next() as usize % frame.len().clamp(1, 60);
            if let Some(byte) = frame.get_mut(at) {
                *byte = random.next() as u8;
            }
        }
        frame.truncate(if round % 7 == 0 { random.next() as usize % 100 } else { usize::MAX });
        let Ok(shape) = parse(&frame) else { continue };
        understood += 1;
        let runs = random_runs(&mut random, shape.load.packets);
        let bytes: u64 = split(&frame, &shape, &runs).map(|piece| written(&piece).len() as u64).sum();
        assert!(bytes <= frame.len() as u64 + runs.len() as u64 * HEADERS_BYTES_MAX as u64);
    }
    assert!(understood > 1_000, "{understood}: the turned bytes leave many frames good");
}
