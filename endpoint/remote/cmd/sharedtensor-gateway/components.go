package main

import (
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins/binsgate"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/compute/computegate"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/inference"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/jsonrpc"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror/mirrorgate"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/models"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streamgate"
)

// newComponents returns the program's components in registration order.
func newComponents() []gateway.Component {
	files := &models.Component{}
	return []gateway.Component{
		files,
		&jsonrpc.Component{Models: files},
		binsgate.New(),
		streamgate.New(),
		computegate.New(),
		inference.New(),
		mirrorgate.New(),
	}
}
