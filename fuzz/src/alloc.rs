//! An allocator that counts: bytes that live now, and the most that lived since [`mark`]. It is how growth is found.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counted.
pub(crate) struct Counting;

fn add(bytes: usize) {
    let live = LIVE_BYTES.fetch_add(bytes, Relaxed) + bytes;
    PEAK_BYTES.fetch_max(live, Relaxed);
}

// SAFETY: every call goes to the system's allocator with the caller's arguments; counting touches no memory of its own.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`, which is passed on unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`, which is passed on unchanged.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`, which is passed on unchanged.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        add(size);
        LIVE_BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `realloc`, which is passed on unchanged.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Bytes that live now; the peak is counted from here on.
pub(crate) fn mark() -> usize {
    let live = live_bytes();
    PEAK_BYTES.store(live, Relaxed);
    live
}

/// Bytes that live now.
pub(crate) fn live_bytes() -> usize {
    LIVE_BYTES.load(Relaxed)
}

/// The most that lived since the last [`mark`].
pub(crate) fn peak_bytes() -> usize {
    PEAK_BYTES.load(Relaxed)
}
