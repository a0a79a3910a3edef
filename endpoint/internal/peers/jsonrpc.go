package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
)

// jsonRPC is JSON-RPC 2.0 over net/http. encoding/json encodes bytes as base64.
func jsonRPC() peer {
	return peer{name: "JSON-RPC/HTTP", serve: serveJSON, dial: dialJSON, copies: 14}
}

type jsonRequest struct {
	Version string `json:"jsonrpc"`
	Method  string `json:"method"`
	Params  echoed `json:"params"`
	ID      uint64 `json:"id"`
}

type jsonResponse struct {
	Version string          `json:"jsonrpc"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   string          `json:"error,omitempty"`
	ID      uint64          `json:"id"`
}

func serveJSON(socket string) (io.Closer, error) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	s := &http.Server{Handler: http.HandlerFunc(answerJSON)}
	go s.Serve(l)
	return s, nil
}

func answerJSON(w http.ResponseWriter, r *http.Request) {
	var in jsonRequest
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	out := jsonResponse{Version: "2.0", ID: in.ID}
	var result any = in.Params
	if in.Method == "send" {
		result = sign(in.Params.Data)
	}
	var err error
	if out.Result, err = json.Marshal(result); err != nil {
		out.Error = err.Error()
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(out)
}

type jsonClient struct {
	*http.Client
	ids *atomic.Uint64
}

func dialJSON(socket string, callers int) (client, error) {
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
		MaxIdleConns: callers, MaxIdleConnsPerHost: callers,
	}
	return jsonClient{&http.Client{Transport: t}, new(atomic.Uint64)}, nil
}

func (c jsonClient) call(ctx context.Context, method string, data []byte, out any) error {
	body, err := json.Marshal(jsonRequest{Version: "2.0", Method: method, Params: echoed{data}, ID: c.ids.Add(1)})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://peers/", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("server status %s", resp.Status)
	}
	var answer jsonResponse
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return err
	}
	io.Copy(io.Discard, resp.Body) // read to the end, so that the connection is reused
	if answer.Error != "" {
		return errors.New(answer.Error)
	}
	return json.Unmarshal(answer.Result, out)
}

func (c jsonClient) echo(ctx context.Context, data []byte) ([]byte, error) {
	var out echoed
	err := c.call(ctx, "echo", data, &out)
	return out.Data, err
}

func (c jsonClient) send(ctx context.Context, arg argument) (out uint64, err error) {
	err = c.call(ctx, "send", arg.bytes, &out)
	return out, err
}

func (c jsonClient) Close() error {
	c.CloseIdleConnections()
	return nil
}
