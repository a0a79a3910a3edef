// Package grpcguard admits the calls of a gRPC server before their messages are received.
//
// grpc-go reads, inflates and decodes a message before the interceptors of a unary call run. A [Guard] therefore acts
// earlier. Its tap handler checks the sender when the headers of a call arrive. Its connections count the DATA frames
// of each call as they arrive, and charge them to the sender's budget until the message is processed.
//
//	guard := grpcguard.New(grpcguard.Options{Controller: controller, Admit: admit})
//	server := grpc.NewServer(guard.ServerOptions(credentials)...)
//	guard.Services(server).RegisterService(&desc, implementation)
//	go guard.Run(ctx)
package grpcguard
