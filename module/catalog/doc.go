// Package catalog keeps the named, versioned state dicts that an owner has published, and their holders.
//
// Publishing an existing name creates the next version beside the old one. Readers keep the old version, new readers
// get the new one, and watchers receive an event. The old version is freed when its last reader leaves. Publishers,
// readers and watchers never wait for each other.
//
// A reader holds a version by a [Lease]. A lease belongs to a [Holder], which is a session. When the session ends,
// [Catalog.ReleaseHolder] releases all its leases.
//
//	             Publish                 Publish of the next         last lease released, or
//	(nothing) ────────────> current ──────────────────────> old ──── retention used up ────> freed
//	                           │                              │                                 ^
//	                           └──────── Withdraw ────────────┴──> withdrawn ── last lease ─────┘
//
// The catalog is a pure data structure: one mutex, no goroutines, and a clock from its options. It closes a state dict
// outside its lock, exactly once, when neither a holder nor a name refers to it.
//
// Surprises: a version number is never reused for a name, even after the name was withdrawn, so name and version
// identify the same bytes during the life of the owner. The state dict of a lease is borrowed: it is closed when the
// lease is released, even if the caller still has pointers to it.
package catalog
