// Package endpoint lets one process own tensors and other processes on the same host use them in place.
//
// An owner publishes models and serves (errors are omitted):
//
//	server, _ := endpoint.NewServer(endpoint.ServerOptions{Devices: []driver.Device{dev}})
//	weights, _ := module.Load(ctx, dev, "model.safetensors", module.LoadOptions{})
//	server.Publish(ctx, "llm", weights, endpoint.PublishOptions{})
//	server.Serve(ctx)
//
// A service in another process uses the newest version for each request:
//
//	client, _ := endpoint.Dial(ctx, endpoint.ClientOptions{Devices: []driver.Device{dev}, Wait: true})
//	llm, _ := client.Follow(ctx, "llm", endpoint.FollowOptions{})
//	llm.Use(func(v endpoint.ModelVersion) error { return answer(w, r, v.StateDict) })
//
// [Client.Acquire] attaches one version. [Register] and [Call] run functions of the owner with tensors in place.
// Package node makes one program owner or client.
//
// # Rules
//
//   - Publishing freezes the memory of a state dict and creates the next version of its name. Readers keep their
//     version. A version is freed when its last lease ends.
//   - Leases, references, watches and offers belong to a session, which is one connection. They end with it. Mapped
//     memory stays valid until the process that mapped it closes the [Handle], [Pinned], [Ref] or tensor.
//   - After a reconnection to the same owner, a client resumes its leases and watches. A handle of a replaced owner
//     becomes [Orphaned] and stays readable.
//   - A function borrows the tensors of its argument and may not write to them without [WritableArguments]: the process
//     would be killed. The endpoint takes the tensors of a result. A function that returns a tensor it keeps must
//     return an alias or a view of it.
//   - A caller closes the tensors of a result and must not write to them; other callers may share them.
//   - Field names of arguments are those of `cbor` or `json` tags. Unknown fields are refused. A field without a value
//     is refused unless it is a pointer or has omitempty; a tensor needs omitempty.
//   - A function runs once per call unless its endpoint is [Cached], has a [CacheKey] or is [Managed]. A tensor is part
//     of a key only if its bytes cannot change: published, sealed (tensor.Storage.Seal), counted by the caller
//     (tensor.Storage.Touch), or the result of a cached endpoint. Errors are not cached.
//   - The run of a cached endpoint can be shared by several callers. It is cancelled when all of them have left and has
//     no deadline but the endpoint's [Timeout].
//   - A task outlives its caller's connection. [TaskOptions] limit tasks, [ResultOptions] limit cached results, [Limits]
//     limit everything that clients can make a server hold. Over a limit the error is [ErrLimit].
//   - A managed object lives while a session holds a [Ref] to it. Ref.Done is closed when the server destroys it.
//   - Memory from [ResultDevice] is reused for results of the same client, after the client has closed them.
//   - Tensors that cannot be shared in place are refused with the reason. Nothing is copied silently.
//   - An error of an owner answers errors.Is for the sentinels of this package and those below it, and errors.As for
//     [*message.Error]. Sentinels and types of a program stay in its process.
//   - Both sides verify the peer's uid. Sizes, offsets, names and descriptors are validated before memory is allocated.
//     Nothing received is executed.
//   - A client of a server in the same process uses a pipe instead of the socket and shares memory directly, with the
//     same checks. [ClientOptions] can force the socket.
//
// A state has an accessor and Changed, a channel that is closed at the next change. Get the channel before the state.
// docs/ has a page for each subject; wire/PROTOCOL.md specifies the protocol.
package endpoint
