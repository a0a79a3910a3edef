package peers

import (
	"context"
	"io"
	"net"
	"net/rpc"
)

// netRPC is net/rpc of the standard library, with gob. It does not support contexts.
func netRPC() peer {
	return peer{name: "netrpc", serve: serveNetRPC, dial: dialNetRPC}
}

// NetRPC has the methods that net/rpc serves. They must be exported.
type NetRPC struct{}

// Echo returns its argument.
func (NetRPC) Echo(in *echoedGob, out *echoedGob) error {
	*out = *in
	return nil
}

// Send returns the sign of its argument.
func (NetRPC) Send(in *echoedGob, out *uint64) error {
	*out = sign(in.Data)
	return nil
}

// echoedGob is an alias of an unnamed type, because net/rpc accepts only types that are exported or built in.
type echoedGob = struct{ Data []byte }

func serveNetRPC(socket string) (io.Closer, error) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	s := rpc.NewServer()
	if err := s.Register(NetRPC{}); err != nil {
		return nil, err
	}
	go func() { // unlike s.Accept, does not log that l was closed
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go s.ServeConn(c)
		}
	}()
	return l, nil
}

type netRPCClient struct{ *rpc.Client }

func dialNetRPC(socket string, _ int) (client, error) {
	c, err := rpc.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	return netRPCClient{c}, nil
}

func (c netRPCClient) echo(_ context.Context, data []byte) ([]byte, error) {
	var out echoedGob
	err := c.Call("NetRPC.Echo", &echoedGob{Data: data}, &out)
	return out.Data, err
}

func (c netRPCClient) send(_ context.Context, arg argument) (out uint64, err error) {
	err = c.Call("NetRPC.Send", &echoedGob{Data: arg.bytes}, &out)
	return out, err
}
