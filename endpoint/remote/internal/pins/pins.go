// Package pins keeps in go.mod the dependencies whose packages are not written yet.
package pins

import (
	_ "github.com/creachadair/jrpc2"
	_ "github.com/nats-io/nats-server/v2/server"
	_ "github.com/nats-io/nats.go/jetstream"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "github.com/sharedtensor/sharedtensor/endpoint"
	_ "github.com/spf13/cobra"
	_ "github.com/stretchr/testify/require"
	_ "go.yaml.in/yaml/v3"
	_ "google.golang.org/grpc"
	_ "google.golang.org/grpc/health"
	_ "google.golang.org/grpc/reflection"
	_ "google.golang.org/protobuf/proto"
)
