package main

import (
	"context"
	"io"
	"net"

	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// ttrpcPeer is containerd's gRPC without HTTP/2.
func ttrpcPeer() peer {
	return peer{name: "ttrpc", serve: serveTTRPC, dial: dialTTRPC, maxBytes: 4<<20 - 1<<10, why: "its messages have at most 4 MiB", copies: 6}
}

func serveTTRPC(socket string) (io.Closer, error) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	s, err := ttrpc.NewServer()
	if err != nil {
		return nil, err
	}
	s.Register(service, map[string]ttrpc.Method{
		"Echo": ttrpcMethod(protoServer.Echo),
		"Send": ttrpcMethod(protoServer.Send),
	})
	go s.Serve(context.Background(), l)
	return s, nil
}

func ttrpcMethod[Out any](call func(protoServer, context.Context, *bytesValue) (Out, error)) ttrpc.Method {
	return func(ctx context.Context, decode func(any) error) (any, error) {
		in := new(bytesValue)
		if err := decode(in); err != nil {
			return nil, err
		}
		return call(protoServer{}, ctx, in)
	}
}

type ttrpcClient struct{ *ttrpc.Client }

func dialTTRPC(socket string, _ int) (client, error) {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	return ttrpcClient{ttrpc.NewClient(c)}, nil
}

func (c ttrpcClient) echo(ctx context.Context, data []byte) ([]byte, error) {
	out := new(bytesValue)
	err := c.Call(ctx, service, "Echo", wrapperspb.Bytes(data), out)
	return out.GetValue(), err
}

func (c ttrpcClient) send(ctx context.Context, arg argument) (uint64, error) {
	out := new(signValue)
	err := c.Call(ctx, service, "Send", wrapperspb.Bytes(arg.bytes), out)
	return out.GetValue(), err
}
