// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"encoding/base64"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const (
	// pollInterval is how often the data of the guest agent is read.
	pollInterval = 5 * time.Second
	// agentTimeout limits how long the agent may take for a command: emulated guests are slow.
	agentTimeout = 30 * time.Second
	// filePart and maxFileRead are how many bytes of a file are read at once, and in total.
	filePart, maxFileRead = 1 << 20, 16 << 20
)

// agent is the connection to the guest agent of a VM. The agent runs in the guest only part of the time.
type agent struct {
	monitor *monitor

	mu       sync.Mutex
	open     bool          // the agent has opened its port
	changed  chan struct{} // closed when open changes
	responds bool          // to the last poll
}

func newAgent(conn net.Conn) *agent {
	return &agent{monitor: newMonitor(conn, nil), changed: make(chan struct{})}
}

func (a *agent) close() { a.monitor.close() }

func (a *agent) setOpen(open bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open = open
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *agent) state() (open bool, changed <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.open, a.changed
}

func (a *agent) setResponds(responds bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.responds = responds
}

// poll reads the data of the agent and passes it to the simulator until ctx is done.
func (a *agent) poll(ctx context.Context, m *pvesim.Machine) {
	for ctx.Err() == nil {
		open, changed := a.state()
		var data *pvesim.Agent
		if open {
			data, _ = a.read(ctx) // an agent that does not respond does not run
		}
		a.setResponds(data != nil)
		m.SetAgent(data)
		var next <-chan time.Time
		if open {
			next = time.After(pollInterval)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-next:
		}
	}
	m.SetAgent(nil)
}

func (a *agent) execute(ctx context.Context, command string, arguments map[string]any, result any) error {
	ctx, cancel := context.WithTimeout(ctx, agentTimeout)
	defer cancel()
	return a.monitor.execute(ctx, command, arguments, result)
}

// read returns what the agent reports.
func (a *agent) read(ctx context.Context) (*pvesim.Agent, error) {
	var name struct {
		Name string `json:"host-name"`
	}
	if err := a.execute(ctx, "guest-get-host-name", nil, &name); err != nil {
		return nil, err
	}
	out := &pvesim.Agent{Hostname: name.Name}
	if err := a.execute(ctx, "guest-get-osinfo", nil, &out.OS); err != nil {
		return nil, err
	}
	var interfaces []struct {
		Name      string `json:"name"`
		MAC       string `json:"hardware-address"`
		Addresses []struct {
			IP     string `json:"ip-address"`
			Prefix int    `json:"prefix"`
		} `json:"ip-addresses"`
	}
	if err := a.execute(ctx, "guest-network-get-interfaces", nil, &interfaces); err != nil {
		return nil, err
	}
	for _, i := range interfaces {
		card := pvesim.AgentInterface{Name: i.Name, MAC: i.MAC}
		for _, address := range i.Addresses {
			card.Addresses = append(card.Addresses, fmt.Sprintf("%s/%d", address.IP, address.Prefix))
		}
		out.Interfaces = append(out.Interfaces, card)
	}
	out.ReadFile = a.readFile
	return out, nil
}

// readFile returns the content of a file, at most as much as Proxmox returns.
func (a *agent) readFile(ctx context.Context, name string) ([]byte, error) {
	var handle int64
	if err := a.execute(ctx, "guest-file-open", map[string]any{"path": name, "mode": "r"}, &handle); err != nil {
		if strings.HasSuffix(err.Error(), "No such file or directory") {
			return nil, fmt.Errorf("%w: %w", fs.ErrNotExist, err)
		}
		return nil, err
	}
	defer func() { _ = a.execute(ctx, "guest-file-close", map[string]any{"handle": handle}, nil) }()
	var content []byte
	for len(content) <= maxFileRead {
		var part struct {
			Count   int    `json:"count"`
			Content []byte `json:"buf-b64"`
			EOF     bool   `json:"eof"`
		}
		if err := a.execute(ctx, "guest-file-read", map[string]any{"handle": handle, "count": filePart}, &part); err != nil {
			return nil, err
		}
		content = append(content, part.Content...)
		if part.EOF || part.Count == 0 {
			break
		}
	}
	return content, nil
}

// shutdown requests a shutdown and reports whether the agent responded to the last poll. The agent does not respond to
// the request itself.
func (a *agent) shutdown() bool {
	a.mu.Lock()
	responds := a.responds
	a.mu.Unlock()
	if !responds {
		return false
	}
	_, _, err := a.monitor.send("guest-shutdown", nil)
	return err == nil
}

// execPollInterval is how often Exec checks whether a command has ended.
const execPollInterval = 200 * time.Millisecond

// Exec runs a program in the guest of a running VM by its guest agent and returns its standard output. It waits until
// the program has ended, and fails if its exit code is not zero.
func (r *Runtime) Exec(ctx context.Context, vmid int, program string, args ...string) (string, error) {
	g, err := r.runningGuest(vmid)
	if err == nil {
		var out string
		if out, err = g.agent.exec(ctx, program, args); err == nil {
			return out, nil
		}
	}
	return "", fmt.Errorf("running %s in VM %d: %w", program, vmid, err)
}

func (a *agent) exec(ctx context.Context, program string, args []string) (string, error) {
	var started struct {
		PID int `json:"pid"`
	}
	request := map[string]any{"path": program, "arg": args, "capture-output": true}
	if len(args) == 0 {
		delete(request, "arg")
	}
	if err := a.execute(ctx, "guest-exec", request, &started); err != nil {
		return "", err
	}
	for {
		var status struct {
			Exited bool   `json:"exited"`
			Code   int    `json:"exitcode"`
			Signal int    `json:"signal"`
			Out    string `json:"out-data"`
			Err    string `json:"err-data"`
		}
		if err := a.execute(ctx, "guest-exec-status", map[string]any{"pid": started.PID}, &status); err != nil {
			return "", err
		}
		if status.Exited {
			out, err := base64.StdEncoding.DecodeString(status.Out)
			if err == nil && (status.Code != 0 || status.Signal != 0) {
				text, _ := base64.StdEncoding.DecodeString(status.Err) // only part of the message
				err = fmt.Errorf("exit code %d, signal %d: %s", status.Code, status.Signal, text)
			}
			return string(out), err
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(execPollInterval):
		}
	}
}
