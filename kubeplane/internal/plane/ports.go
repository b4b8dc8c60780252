// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plane

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// port is a TCP port on loopback that no other process can get while it is held.
//
// To pick a free port and close it again would leave a gap in which a plane that starts at the same moment, or
// any outgoing connection, may be given the same one. So the socket stays bound, never listening, and the
// component binds beside it with SO_REUSEPORT, which etcd and Kubernetes have flags for. The kernel hands out
// only unbound ports, so no two planes collide and no retry is needed.
type port struct {
	number int
	socket int
}

func reservePort() (port, error) {
	// Close-on-exec matters: an inherited copy would hold the port beyond our end.
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return port{}, fmt.Errorf("opening a socket: %w", err)
	}
	number, err := bindToLoopback(socket)
	if err != nil {
		return port{}, errors.Join(fmt.Errorf("reserving a port on 127.0.0.1: %w", err), unix.Close(socket))
	}
	return port{number: number, socket: socket}, nil
}

func bindToLoopback(socket int) (int, error) {
	if err := unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return 0, err
	}
	if err := unix.Bind(socket, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, err
	}
	address, err := unix.Getsockname(socket)
	if err != nil {
		return 0, err
	}
	inet, ok := address.(*unix.SockaddrInet4)
	if !ok {
		return 0, syscall.EAFNOSUPPORT
	}
	return inet.Port, nil
}

func (p port) release() error { return unix.Close(p.socket) }

func (p port) url(scheme string) string { return fmt.Sprintf("%s://127.0.0.1:%d", scheme, p.number) }

// ports are the five that a plane listens on.
type ports struct {
	etcd, etcdPeer, apiServer, controllerManager, scheduler port
}

func reservePorts() (ports, error) {
	var p ports
	var held []port
	for _, target := range []*port{&p.etcd, &p.etcdPeer, &p.apiServer, &p.controllerManager, &p.scheduler} {
		got, err := reservePort()
		if err != nil {
			for _, h := range held {
				err = errors.Join(err, h.release())
			}
			return ports{}, err
		}
		held = append(held, got)
		*target = got
	}
	return p, nil
}

func (p ports) release() error {
	return errors.Join(p.etcd.release(), p.etcdPeer.release(), p.apiServer.release(),
		p.controllerManager.release(), p.scheduler.release())
}
