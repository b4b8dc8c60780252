// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
)

// monitor is a client of QEMU's monitor (QMP) or of the guest agent, which have the same format: one JSON object per
// request and response.
type monitor struct {
	conn  net.Conn
	event func(name string, data json.RawMessage)

	mu      sync.Mutex
	next    int
	waiting map[string]chan message // by request ID; nil after the connection has ended
}

type message struct {
	ID     string          `json:"id"`
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Desc string `json:"desc"`
	} `json:"error"`
	Event string          `json:"event"`
	Data  json.RawMessage `json:"data"`
}

// newMonitor returns a client for a connection. It calls event for each event, in order.
func newMonitor(conn net.Conn, event func(name string, data json.RawMessage)) *monitor {
	m := &monitor{conn: conn, event: event, waiting: map[string]chan message{}}
	go m.read()
	return m
}

func (m *monitor) read() {
	for decoder := json.NewDecoder(m.conn); ; {
		var msg message
		if decoder.Decode(&msg) != nil {
			break // QEMU ended, or the connection is closed
		}
		m.mu.Lock()
		answer := m.waiting[msg.ID]
		delete(m.waiting, msg.ID)
		m.mu.Unlock()
		if answer != nil {
			answer <- msg
		} else if msg.Event != "" && m.event != nil {
			m.event(msg.Event, msg.Data)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, answer := range m.waiting {
		close(answer)
	}
	m.waiting = nil
}

// send sends a command and returns the channel of its response.
func (m *monitor) send(command string, arguments map[string]any) (id string, answer chan message, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waiting == nil {
		return "", nil, io.ErrClosedPipe
	}
	m.next++
	id = strconv.Itoa(m.next)
	request := map[string]any{"execute": command, "id": id}
	if arguments != nil {
		request["arguments"] = arguments
	}
	line, err := json.Marshal(request)
	if err != nil {
		return "", nil, err
	}
	answer = make(chan message, 1)
	m.waiting[id] = answer
	if _, err := m.conn.Write(append(line, '\n')); err != nil {
		delete(m.waiting, id)
		return "", nil, err
	}
	return id, answer, nil
}

// execute runs a command and stores what it returns in result, if that is not nil.
func (m *monitor) execute(ctx context.Context, command string, arguments map[string]any, result any) error {
	id, answer, err := m.send(command, arguments)
	if err != nil {
		return fmt.Errorf("sending %s: %w", command, err)
	}
	select {
	case <-ctx.Done():
		m.mu.Lock()
		delete(m.waiting, id)
		m.mu.Unlock()
		return fmt.Errorf("waiting for the response to %s: %w", command, ctx.Err())
	case msg, ok := <-answer:
		switch {
		case !ok:
			return fmt.Errorf("waiting for the response to %s: %w", command, io.ErrUnexpectedEOF)
		case msg.Error != nil:
			return fmt.Errorf("%s: %w", command, errors.New(msg.Error.Desc))
		case result == nil:
			return nil
		}
		if err := json.Unmarshal(msg.Return, result); err != nil {
			return fmt.Errorf("reading the response to %s: %w", command, err)
		}
		return nil
	}
}

func (m *monitor) close() { _ = m.conn.Close() }

// socketPair returns a connection and the file of its other end for a child process.
func socketPair() (net.Conn, *os.File, error) {
	syscall.ForkLock.RLock() // no child may inherit the sockets; only Linux has SOCK_CLOEXEC
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, fmt.Errorf("creating socket pair: %w", err)
	}
	local, remote := os.NewFile(uintptr(fds[0]), "local"), os.NewFile(uintptr(fds[1]), "remote")
	defer func() { _ = local.Close() }() // FileConn duplicates it
	conn, err := net.FileConn(local)
	if err != nil {
		_ = remote.Close()
		return nil, nil, fmt.Errorf("creating socket pair: %w", err)
	}
	return conn, remote, nil
}
