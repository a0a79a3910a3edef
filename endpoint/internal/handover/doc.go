// Package handover passes the socket and the versions of an owner to its successor, a process that the owner has started:
//
//	successor                  owner
//	  |- request take ---------->|  the successor has passed its checks
//	  |<- response state --------|  the owner has stopped publications; descriptors follow in further responses
//	  |- request serve --------->|  the successor has adopted everything and will accept clients
//	  |<- response --------------|  the owner accepts no more clients
//
// If the connection ends before "serve", the owner continues. If it ends after the state, the successor serves.
package handover
