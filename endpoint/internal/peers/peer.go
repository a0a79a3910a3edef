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
	// serve answers calls on a socket until the Closer is closed.
	serve func(socket string) (io.Closer, error)
	// dial connects to a server's socket. callers is the number of concurrent calls.
	dial func(socket string, callers int) (client, error)
	// maxBytes is the size of the largest argument, or 0 if there is no limit. why describes the limit.
	maxBytes int64
	why      string
	// onlyTensors and onlySmall restrict the measurements of the peer.
	onlyTensors, onlySmall bool
	// copies is the memory that both processes use for an argument, as a multiple of its size.
	copies int64
}

// client calls the two functions that every peer serves. Its methods are safe for concurrent use.
type client interface {
	// echo returns its argument.
	echo(ctx context.Context, data []byte) ([]byte, error)
	// send passes an argument to a function that returns its sign, or its size if it does not read it.
	send(ctx context.Context, arg argument) (uint64, error)
	Close() error
}

// argument is a tensor of bytes in memory that can be shared. bytes is its content.
type argument struct {
	tensor *tensor.Tensor
	bytes  []byte
}

// sign returns the result of the function that receives a tensor. It proves that both ends of the argument have
// arrived.
func sign(data []byte) uint64 {
	return uint64(len(data))<<16 | uint64(data[0])<<8 | uint64(data[len(data)-1])
}

// peers returns all peers.
func peers() []peer {
	return []peer{ours(), oursSleeping(), oursBySocket(), oursBySocketSleeping(), oursReading(), grpcPeer(), ttrpcPeer(), netRPC(), jsonRPC(), bare()}
}

// find returns the peer with that name.
func find(name string) (peer, error) {
	for _, p := range peers() {
		if p.name == name {
			return p, nil
		}
	}
	return peer{}, fmt.Errorf("unknown peer %q", name)
}
