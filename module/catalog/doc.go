// Package catalog keeps what an owner has published: named, versioned state dicts, and their holders.
//
// Publishing a name that exists makes the next version beside the old one. Readers of the old version stay on it, new
// readers get the new one, watchers are told, and the old version is freed when its last reader has gone. Nobody waits
// for anybody: a publisher does not wait for readers, a reader does not wait for a publisher, and nothing waits for a
// watcher that is slow to look.
//
// A reader's hold on a version is a [Lease]. A lease belongs to a [Holder], which is a session: when the session ends,
// [Catalog.ReleaseHolder] takes all its leases back.
//
//	             Publish                 Publish of the next         last lease released, or
//	(nothing) ────────────> current ──────────────────────> old ──── retention used up ────> freed
//	                           │                              │                                 ^
//	                           └──────── Withdraw ────────────┴──> withdrawn ── last lease ─────┘
//
// The catalog is a data structure and no more: one mutex, no goroutines, no clock but the one it is given. It closes a
// state dict outside its lock, exactly once, at the moment when no holder and no name refers to it any more.
//
// What surprises: a version number is never given twice for a name, also not after the name was withdrawn, so "name and
// version" names the same bytes for the life of the owner. The state dict of a lease is borrowed: it is closed when
// the lease is released, however many pointers to it the caller has kept.
package catalog
