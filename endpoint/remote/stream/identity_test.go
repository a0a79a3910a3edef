package stream_test

import (
	"context"
	"hash/crc32"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream"
)

// checksum continues a CRC-32C.
func checksum(crc uint32, data []byte) uint32 {
	return crc32.Update(crc, crc32.MakeTable(crc32.Castagnoli), data)
}

// identified is a call with the identity that its client names.
type identified struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (i identified) Context() context.Context { return i.ctx }

// serveAs runs a server whose clients name their identity.
func serveAs(t *testing.T, opts stream.ServerOptions) (*stream.Server, string) {
	t.Helper()
	server, err := stream.NewServer(opts)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	identify := func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		md, _ := metadata.FromIncomingContext(ss.Context())
		id := rights.Identity{Name: md.Get("name")[0], Method: rights.MethodToken}
		return next(srv, identified{ss, rights.WithIdentity(ss.Context(), id)})
	}
	s := grpc.NewServer(append(server.GRPCOptions(), grpc.StreamInterceptor(identify))...)
	server.Register(s)
	go s.Serve(l)
	t.Cleanup(func() {
		s.Stop()
		_ = server.Close()
		require.Zero(t, server.PendingBytes())
	})
	return server, l.Addr().String()
}

// clientAs returns a client with an identity.
func clientAs(t *testing.T, address string, dev *host.Device, name string) *stream.Client {
	t.Helper()
	named := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		return streamer(metadata.AppendToOutgoingContext(ctx, "name", name), desc, cc, method, opts...)
	}
	conn, err := grpc.NewClient(address, append(bulk.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStreamInterceptor(named))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return stream.NewClient(conn, stream.ClientOptions{Device: dev})
}
