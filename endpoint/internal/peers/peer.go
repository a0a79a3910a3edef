package main

import (
	"context"
	"fmt"
	"io"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// peer is one way to call a function of another process.
type peer struct {
	name string
	// serve answers calls on a socket until it is closed.
	serve func(socket string) (io.Closer, error)
	// dial connects to a socket that is served. callers is how many will call at once.
	dial func(socket string, callers int) (client, error)
	// mostBytes is the largest argument that it can carry, 0 for any. why says what the limit is.
	mostBytes int64
	why       string
	// onlyTensors and onlySmall tell that it is measured with nothing else.
	onlyTensors, onlySmall bool
	// copies is how many times the argument's size the two processes hold between them while they carry it.
	copies int64
}

// client calls the two functions that every peer serves. Its methods are safe for concurrent use.
type client interface {
	// echo returns what it is given.
	echo(ctx context.Context, data []byte) ([]byte, error)
	// send passes an argument to a function that returns its sign, or its size if it does not read it.
	send(ctx context.Context, arg argument) (uint64, error)
	Close() error
}

// argument is a tensor of bytes in memory that can be shared, and those bytes.
type argument struct {
	tensor *tensor.Tensor
	bytes  []byte
}

// sign is what the function that gets a tensor returns: it proves that both ends of the argument arrived.
func sign(data []byte) uint64 {
	return uint64(len(data))<<16 | uint64(data[0])<<8 | uint64(data[len(data)-1])
}

// peers are all of them.
func peers() []peer {
	return []peer{ours(), oursSleeping(), oursBySocket(), oursBySocketSleeping(), oursReading(), grpcPeer(), ttrpcPeer(), netRPC(), jsonRPC(), bare()}
}

// find returns the peer of that name.
func find(name string) (peer, error) {
	for _, p := range peers() {
		if p.name == name {
			return p, nil
		}
	}
	return peer{}, fmt.Errorf("no peer is called %q", name)
}
