package message

import "testing"

// BenchmarkCodec measures encoding and decoding a small request.
func BenchmarkCodec(b *testing.B) {
	ping, err := Marshal(Ping{Timestamp: 1 << 40})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("marshal", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := MarshalRequest(OpPing, 1e9, Ping{Timestamp: 1 << 40}); err != nil {
				b.Fatal(err)
			}
		}
	})
	body, err := Marshal(Request{Op: OpPing, Timeout: 1e9, Body: ping})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("unmarshal", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := ParseRequest(body); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("unmarshal ping", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var p Ping
			if err := Unmarshal(ping, &p); err != nil {
				b.Fatal(err)
			}
		}
	})
}
