// Package admission decides which clients a gateway serves, and limits the resources that clients of all protocols can
// occupy: bytes in flight, concurrent calls, and the time that slow senders take.
//
// A [Pool] is a budget in bytes. Its users open a [Charge] for the identity of a request, add bytes as they arrive, and
// close the charge when the memory is freed. Announced sizes are never charged. Each identity has a share of the pool,
// so one client cannot use all of it.
//
//	charge := pool.Open(admission.IdentityFrom(ctx))
//	defer charge.Close()
//	if err := charge.Add(int64(len(chunk))); err != nil { … }
//
// A [Meter] ends a transfer whose sender falls below a minimum rate. A [Controller] limits concurrent calls, and
// cancels the calls of revoked identities.
package admission
