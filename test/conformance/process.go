// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// worldCommand is the argument with which this program runs as a world.
const worldCommand = "world"

// specRequest asks a world to run a spec.
type specRequest struct {
	Spec Spec
	// Binary is the suite's.
	Binary string
	// Dir is the directory of the spec's output.
	Dir string
}

// worldReply is the answer to worldOptions and to each specRequest.
type worldReply struct {
	Error  string `json:",omitempty"`
	Result Result
}

// worldProcess is a world as the runner sees it: a child process in its own user and network
// namespaces, so no part of it needs root or shares a port with another world. They exchange
// JSON over the child's standard input and output.
type worldProcess struct {
	requests *json.Encoder
	replies  *json.Decoder
	stdin    io.Closer
	stdout   io.Closer
	cancel   context.CancelFunc
	done     chan error
	log      string
	large    bool
}

// startWorld starts a world and returns when its controller is ready. Everything in the
// world's directory is replaced.
func startWorld(ctx context.Context, o worldOptions) (*worldProcess, error) {
	if err := os.RemoveAll(o.Dir); err != nil {
		return nil, fmt.Errorf("removing the last world: %w", err)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating directory of world: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	cmd := exec.Command(self, worldCommand)
	// Files, because a process with another reader does not end before its reader does.
	requests, stdin, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("creating pipe: %w", err)
	}
	stdout, replies, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("creating pipe: %w", err)
	}
	cmd.Stdin, cmd.Stdout = requests, replies
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &worldProcess{
		requests: json.NewEncoder(stdin), replies: json.NewDecoder(stdout), stdin: stdin, stdout: stdout,
		cancel: cancel, done: make(chan error, 1), log: filepath.Join(o.Dir, "world.log"), large: o.Large,
	}
	go func() {
		err := harness.RunProcess(ctx, "world", w.log, cmd)
		_, _ = requests.Close(), replies.Close()
		w.done <- err
	}()
	if _, err := w.call(o); err != nil {
		w.stop()
		return nil, fmt.Errorf("starting world: %w (it needs user namespaces; Ubuntu allows them with sysctl kernel.apparmor_restrict_unprivileged_userns=0)", err)
	}
	return w, nil
}

// call sends a request and waits for the reply. It returns an error if the world fails, and a result if the spec does.
func (w *worldProcess) call(request any) (Result, error) {
	var reply worldReply
	if err := w.requests.Encode(request); err != nil {
		return Result{}, err
	}
	if err := w.replies.Decode(&reply); err != nil {
		err = errors.Join(err, <-w.done)
		w.done <- nil
		return Result{}, fmt.Errorf("world ended: %w; the end of %s:\n%s", err, w.log, harness.Tail(w.log, 15))
	}
	if reply.Error != "" {
		return Result{}, errors.New(reply.Error)
	}
	return reply.Result, nil
}

// stop ends the world.
func (w *worldProcess) stop() {
	_ = w.stdin.Close() // the world ends by itself
	w.cancel()
	<-w.done
	_ = w.stdout.Close()
}

// serveWorld is the world's side: it starts the world and runs specs until its input ends.
func serveWorld(ctx context.Context, in io.Reader, out io.Writer) error {
	requests, replies := json.NewDecoder(in), json.NewEncoder(out)
	var o worldOptions
	if err := requests.Decode(&o); err != nil {
		return fmt.Errorf("reading options: %w", err)
	}
	w, err := newWorld(ctx, o)
	if err != nil {
		return errors.Join(err, replies.Encode(worldReply{Error: err.Error()}))
	}
	defer w.close()
	if err := replies.Encode(worldReply{}); err != nil {
		return err
	}
	for {
		var request specRequest
		if err := requests.Decode(&request); errors.Is(err, io.EOF) || ctx.Err() != nil {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading request: %w", err)
		}
		var reply worldReply
		if reply.Result, err = w.run(ctx, request); err != nil {
			reply.Error = err.Error()
		}
		if err := replies.Encode(reply); err != nil {
			return err
		}
	}
}
