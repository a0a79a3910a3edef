package peers

import (
	"context"
	"io"
	"math"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// grpcPeer is grpc-go with unary calls. It uses protobuf's wrapper messages and a service description written by hand,
// as protoc would generate it, so no code generation is needed.
func grpcPeer() peer {
	return peer{name: "grpc", serve: serveGRPC, dial: dialGRPC, maxBytes: math.MaxInt32}
}

type (
	bytesValue = wrapperspb.BytesValue
	signValue  = wrapperspb.UInt64Value
)

const service = "peers.Peers"

// protoServer implements the service.
type protoServer struct{}

func (protoServer) Echo(_ context.Context, in *bytesValue) (*bytesValue, error) {
	return wrapperspb.Bytes(in.GetValue()), nil
}

func (protoServer) Send(_ context.Context, in *bytesValue) (*signValue, error) {
	return wrapperspb.UInt64(sign(in.GetValue())), nil
}

// unary returns a method description as protoc-gen-go-grpc generates it.
func unary[Out any](name string, call func(protoServer, context.Context, *bytesValue) (Out, error)) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: name, Handler: func(srv any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
		in := new(bytesValue)
		if err := decode(in); err != nil {
			return nil, err
		}
		if intercept == nil {
			return call(srv.(protoServer), ctx, in)
		}
		info := &grpc.UnaryServerInfo{Server: srv, FullMethod: "/" + service + "/" + name}
		return intercept(ctx, in, info, func(ctx context.Context, in any) (any, error) {
			return call(srv.(protoServer), ctx, in.(*bytesValue))
		})
	}}
}

func serveGRPC(socket string) (io.Closer, error) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	s := grpc.NewServer(grpc.MaxRecvMsgSize(math.MaxInt32), grpc.MaxSendMsgSize(math.MaxInt32))
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: service,
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{unary("Echo", protoServer.Echo), unary("Send", protoServer.Send)},
	}, protoServer{})
	go s.Serve(l)
	return l, nil
}

type grpcClient struct{ *grpc.ClientConn }

func dialGRPC(socket string, _ int) (client, error) {
	c, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)))
	if err != nil {
		return nil, err
	}
	return grpcClient{c}, nil
}

func (c grpcClient) echo(ctx context.Context, data []byte) ([]byte, error) {
	out := new(bytesValue)
	err := c.Invoke(ctx, "/"+service+"/Echo", wrapperspb.Bytes(data), out)
	return out.GetValue(), err
}

func (c grpcClient) send(ctx context.Context, arg argument) (uint64, error) {
	out := new(signValue)
	err := c.Invoke(ctx, "/"+service+"/Send", wrapperspb.Bytes(arg.bytes), out)
	return out.GetValue(), err
}
