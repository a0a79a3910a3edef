// Package endpoint lets one process own tensors and every other process of its user on the same host use them in place.
//
// An owner publishes what it has loaded, and serves (errors are left out):
//
//	server, _ := endpoint.NewServer(endpoint.ServerOptions{Devices: []driver.Device{dev}})
//	weights, _ := module.Load(ctx, dev, "model.safetensors", module.LoadOptions{})
//	server.Publish(ctx, "llm", weights)
//	server.Serve(ctx)
//
// A service in another process answers from the newest version, whatever is published meanwhile:
//
//	client, _ := endpoint.Dial(ctx, endpoint.ClientOptions{Devices: []driver.Device{dev}, Wait: true})
//	llm, _ := client.Follow(ctx, "llm", endpoint.FollowOptions{})
//	llm.Use(func(sd *module.StateDict) error { return answer(w, r, sd) })
//
// [Client.Acquire] attaches one version, and [Register] and [Call] have functions of the owner called with tensors that
// nobody copies.
//
// # The life of a shared model
//
// An owner opens a [Server] on a Unix socket and publishes a state dict under a name. That freezes its memory against
// new writers, exports one handle for each storage (a model loaded by package module has one storage a device), and
// enters version 1 in the owner's catalog. A [Client] dials the socket and acquires the name: the owner notes a lease
// and answers with one frame that carries the manifest and the descriptors, the client maps each descriptor once, and
// the [Handle] holds a state dict of views. What that costs does not depend on the bytes; each further tensor adds a
// fraction of a microsecond.
//
// Publishing the name again makes version 2 beside version 1. Whoever holds version 1 keeps it and hears of version 2
// by event; whoever comes now gets version 2; when the last lease on version 1 goes, its memory does. No reader waits
// for a writer, and no writer for a reader. [Client.Follow] does that for a service: its requests get the newest
// version, and each keeps the one that it began with.
//
// # Ownership
//
// A lease belongs to the session, which is the connection. When the connection ends, by Close or because the process
// was killed, the kernel tells the owner and every lease of it goes back at once. The memory itself belongs to whoever
// has it mapped: it stays valid in the client until the handle is closed, whatever becomes of the lease, the owner or
// the socket. So the catalog says what the owner must keep for others, never what a reader may still touch.
//
// A client may be there before its owner ([NewClient]), and wait for a name that is not published yet
// ([AcquireOptions]); [Client.Stats] say how it is connected and which versions it has, and [WriteClientMetrics] writes
// that for Prometheus. When the owner goes away, a client that holds handles or watchers dials again by itself. It
// takes its leases again from the same owner; a handle whose owner was replaced by another becomes [Orphaned] and stays
// readable.
//
// # States and events
//
// A state can be read at any time without asking anybody, and Changed returns a channel that is closed at its next
// change: [Client.State], [Handle.State], [Follower.Status]. Ask for the channel first and for the state afterwards;
// what changes twice meanwhile is seen once. What ends once has Done and Err, as a context has: [Ref], [Offer]. Events
// and results that come one after the other are an iterator, which ends with its context or the first error:
// [Watcher.Events], [Client.WatchTask], [Client.WatchTasks], [Client.Stream].
//
// # Calls
//
// A [Registry] has Go functions under names ([Register], [RegisterStream]); a server with one runs them for its clients
// ([Caller].Call, or typed [Call], [Stub] and [Stream]). Arguments and results are scalars, strings, bytes, times,
// slices, arrays, maps, structs, tensors and state dicts, nested freely; fields have the names that `cbor` or `json`
// tags give them, and one that the argument does not have is refused, and so is one without a value, unless it is
// optional: a pointer, or omitempty in its tag (tensors are pointers and need the tag). Nil slices and maps without
// tensors arrive empty. Tensors are not copied, in either direction, wherever in a value they stand: the other process
// maps the same memory. What cannot be shared in place is refused, with the reason.
//
// The function borrows the tensors of its argument: the endpoint closes them when the function has returned. They are
// mapped read-only unless the endpoint has [WritableArguments]; writing to them kills the process. The endpoint takes
// the tensors of a result that comes without an error; a function that hands out a tensor of its own clones it. The
// caller closes the tensors of what it gets, and writes to none: others may have got the same result.
//
// The end of the caller's context, its deadline and the end of its connection end the context of the function. A panic,
// and a function that ends its goroutine, are errors of the call.
//
// # Memory of results that is used again
//
// A fresh tensor with each answer costs its pages, which are made, zeroed and mapped on both sides. A function that
// takes the memory of its result from [ResultDevice] gets memory that its caller had and gave back before:
//
//	t, err := tensor.Uninitialized(endpoint.ResultDevice(ctx, dev), tensor.Float32, shape)
//
// It is the same client's always, and nobody has it any more. [Limits] say how much of it there may be (SlabBytes); what
// is not used for three seconds, or when the system refuses memory, is given back.
//
// # Results that are kept
//
// A function runs once for each call. An endpoint that is [Cached], has a [CacheKey] or is [Managed] keeps a result
// under a key and hands it to whoever calls with the same key; callers that come while it is being made wait for it
// ([NoSingleFlight] lets them make their own). [NewRegistry] takes options for all endpoints of a registry. With
// [CacheKey] the key is what the template says, whatever else the arguments are. Otherwise it is made of all arguments,
// in their encoding, tensors by their memory, offset, shape and strides. Memory counts where its bytes stay what they
// are:
//
//   - what this owner published, and the tensors in results of endpoints that are cached, to which the function does not write any more;
//   - memory whose versions the caller counts (tensor.Storage.Touch), for the calls of the same connection;
//   - memory that the system keeps everybody from writing (tensor.Storage.Seal, a memfd with F_SEAL_WRITE).
//
// A call of such an endpoint with other memory runs each time, which [EndpointInfo] counts.
//
// A run belongs to all its waiters: its deadline is the latest of theirs, and it is told to stop when the last one
// has left. Errors are not kept, neither is what cannot be encoded, decoded or shared. A result that was invalidated
// while it was made goes to its waiters only. [ResultOptions] bound what is kept; what a
// managed object or a task has stays cached as long, so that nobody makes a second one beside it.
//
// # Tasks
//
// Any call can be submitted as a task, and calls of an endpoint with [Task] are tasks by themselves. A task outlives
// its caller's connection, reports progress (task.Report), is waited for or followed without holding up anybody
// ([Client.WatchTask], [Client.WatchTasks]), and can be cancelled while it runs. Each fetch of its result is a result
// of its own. What a plain call of a task made is the caller's alone: no task keeps it. [TaskOptions] bound how many
// run and are kept, for how long, and the bytes of their results. A task that calls others gives its worker away while
// it waits, and so does one that waits for another's run of a cached call, or for its turn. Tasks that share a run
// share its progress.
//
// # Managed objects
//
// The results of an endpoint with [Managed] are objects, which the server keeps as long as any session has a reference.
// A [Ref] is the value and one reference; it is counted at the server, belongs to the connection, and cannot be given
// back twice or by another. A call that does not ask for a Ref keeps no reference. When an object is gone (the server
// destroyed it, ended or was replaced) the Ref becomes stale, and Done tells so without asking. The memory stays valid
// until the Ref is closed. When the last reference goes, so does the cached result, and what a task kept of it.
// [Client.Objects] lists the objects and their holders; the owner's user and root can take one from all
// its holders ([Client.Destroy], [Server.DestroyObject]).
//
// A Ref or [Handle] that is lost without Close is found by the garbage collector, when neither itself nor its tensors
// are used any more: then what it had goes back with a warning.
//
// # Roles
//
// [Open] makes a process a server, a client or neither, by what the program says or else by the environment
// ([EnvEnabled], [EnvRole], [EnvBasePath]), and [Share] turns a function into one of the same type that runs
// accordingly: callers do not change with the role. A server's socket answers from [Node.Ready] on, when all endpoints
// are registered. Where the program names no socket, each rank of a job ([EnvLocalRank], [EnvRank]) has one of its own,
// and else each device. Within a server, and without one, calls go the direct way: through the same checks, cache,
// single flight and tasks, with errors made to look as they would in a client. Memory is shared instead of exported and
// imported: arguments and results are views of the same storages, read-only where a client's would be (tensors refuse
// to write; a slice of their elements does not know). What another process could not have is refused all the same.
//
// A [Client] that dials a server of its own process finds that out by the socket file, and is connected without the
// socket: it has a session of its own, with leases, references, watchers, streams and tasks that are counted and end as
// any other's, and shares its memory. What it has of that stays valid until it closes it, also when the server is
// closed. [ClientOptions] has a switch that makes it go over the socket.
//
// # What goes on
//
// [Caller].ServerInfo tells what a server is, what memory it has for what and for which holders, how its endpoints were
// called and what their runs took, and what it has counted. [WriteMetrics] writes that for Prometheus, and [Vars] shows
// it among a program's variables. Memory that has several purposes is counted once. Counting costs a call a few atomic
// operations; whoever asks pays for the rest.
//
// # Errors
//
// An error of an owner answers errors.Is in its clients for what it answers to there: for the sentinels of this package
// and of those below, and for its [message.Code]; with errors.As it is a [*message.Error], which has the type of an
// error that has no sentinel. What a function returned arrives in the same way whether it ran as a task or not, and
// within the process as over the socket; a program's own sentinels and types stay in its process. Long texts are cut.
//
// # Whom it trusts
//
// Nobody. The directory and the socket are for one user alone, both sides ask the kernel who is at the other end, and
// what a peer says about sizes, offsets, names and descriptors is checked before anything is mapped or allocated. What
// clients can make an owner hold is bounded by [Limits]: beyond them is [ErrLimit]. A panic in what a type does to
// encode or decode itself is an error of the call, like one in the function. Nothing that arrives is executed.
//
// Devices are handed in: the package knows none by name, so a program that shares host memory only links nothing of
// CUDA.
package endpoint
