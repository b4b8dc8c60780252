// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
)

// GuestClient reads single guests.
type GuestClient interface {
	// VMConfig returns the configuration in force (current=1) on that Host. It
	// returns ErrNotFound only if no such VM is on that Host. Two calls if the user
	// may not see the VMID.
	VMConfig(ctx context.Context, host string, vmid int) (VMConfig, error)
	// ContainerConfig returns a container's configuration in the form of a VM's.
	ContainerConfig(ctx context.Context, host string, vmid int) (VMConfig, error)
	// GuestAddresses returns the addresses that a VM's guest agent reports, except
	// loopback and link-local ones. If the agent does not respond, the call blocks
	// one of the Host's few workers for three seconds: call it rarely.
	GuestAddresses(ctx context.Context, host string, vmid int) ([]netip.Addr, error)
	// GuestFile returns the content of a file in a VM's guest, read by its agent. It
	// returns ErrNotFound if the VM or the file does not exist. If the agent does not
	// respond, the call blocks as GuestAddresses does.
	GuestFile(ctx context.Context, host string, vmid int, name string) (string, error)
	// VMStatus returns the live power state.
	VMStatus(ctx context.Context, host string, vmid int) (VMStatus, error)
}

type guestClient struct{ *caller }

// VMConfig sets current=1, without which Proxmox returns a running VM's pending
// changes as if they were in force.
func (c guestClient) VMConfig(ctx context.Context, host string, vmid int) (VMConfig, error) {
	var config VMConfig
	req := newRequest(http.MethodGet, at("/nodes/{node}/qemu/{vmid}/config", host, vmid).with("current", "1"), nil)
	req.recheck = func(ctx context.Context, err error) error {
		if _, forbidden := errors.AsType[*ForbiddenError](err); forbidden {
			return c.confirmAbsent(ctx, vmid, err)
		}
		return err
	}
	if err := c.call(ctx, req, &config); err != nil {
		return VMConfig{}, fmt.Errorf("reading the config of VM %d on host %s: %w", vmid, host, err)
	}
	return config, nil
}

// confirmAbsent returns ErrNotFound if the VMID is free, or else the given error. A
// token with privileges on a pool has none on an unused VMID, so Proxmox returns 403
// instead of "does not exist". Any user may check whether a VMID is free.
func (c guestClient) confirmAbsent(ctx context.Context, vmid int, forbidden error) error {
	err := c.get(ctx, at("/cluster/nextid").with("vmid", strconv.Itoa(vmid)), nil)
	switch {
	case err == nil:
		return &failure{kind: ErrNotFound, text: fmt.Sprintf("VMID %d is free in the whole cluster", vmid)}
	case errors.Is(err, ErrExists):
		return forbidden
	}
	return err
}

func (c guestClient) ContainerConfig(ctx context.Context, host string, vmid int) (VMConfig, error) {
	var config VMConfig
	if err := c.get(ctx, at("/nodes/{node}/lxc/{vmid}/config", host, vmid), &config); err != nil {
		return VMConfig{}, fmt.Errorf("reading the config of container %d on host %s: %w", vmid, host, err)
	}
	return config, nil
}

// VMStatus is a VM's live state.
type VMStatus struct {
	Running       bool
	Status        string // running, stopped
	Lock          string
	UptimeSeconds int64
	HAManaged     bool
	AgentEnabled  bool
}

func (c guestClient) VMStatus(ctx context.Context, host string, vmid int) (VMStatus, error) {
	var out struct {
		Status string
		Lock   string
		Uptime numeric
		Agent  numeric
		HA     struct{ Managed numeric }
	}
	if err := c.get(ctx, at("/nodes/{node}/qemu/{vmid}/status/current", host, vmid), &out); err != nil {
		return VMStatus{}, fmt.Errorf("reading the status of VM %d on host %s: %w", vmid, host, err)
	}
	return VMStatus{
		Running:       out.Status == "running",
		Status:        out.Status,
		Lock:          out.Lock,
		UptimeSeconds: out.Uptime.whole(),
		HAManaged:     out.HA.Managed.isSet(),
		AgentEnabled:  out.Agent.isSet(),
	}, nil
}

func (c guestClient) GuestAddresses(ctx context.Context, host string, vmid int) ([]netip.Addr, error) {
	var out struct {
		Result agentInterfaces `json:"result"`
	}
	err := c.get(ctx, at("/nodes/{node}/qemu/{vmid}/agent/network-get-interfaces", host, vmid), &out)
	if err == nil {
		err = out.Result.failure
	}
	if err != nil {
		return nil, fmt.Errorf("querying the guest agent of VM %d on host %s: %w", vmid, host, err)
	}
	return out.Result.addresses(), nil
}

func (c guestClient) GuestFile(ctx context.Context, host string, vmid int, name string) (string, error) {
	var out struct {
		Content string `json:"content"`
	}
	if err := c.get(ctx, at("/nodes/{node}/qemu/{vmid}/agent/file-read", host, vmid).with("file", name), &out); err != nil {
		return "", fmt.Errorf("reading file %s in the guest of VM %d on host %s: %w", name, vmid, host, err)
	}
	return out.Content, nil
}

// agentInterfaces are the network interfaces that a guest agent reports, or its error.
type agentInterfaces struct {
	interfaces []struct {
		Addresses []struct {
			Address string `json:"ip-address"`
		} `json:"ip-addresses"`
	}
	failure error
}

// UnmarshalJSON decodes a list of interfaces, or an object with the error of the agent.
func (a *agentInterfaces) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] != '[' {
		var answer struct {
			Error struct {
				Description string `json:"desc"`
			}
		}
		err := json.Unmarshal(data, &answer)
		a.failure = fmt.Errorf("it reports no interfaces: %s", cmp.Or(answer.Error.Description, string(data)))
		return err
	}
	return json.Unmarshal(data, &a.interfaces)
}

func (a agentInterfaces) addresses() []netip.Addr {
	var out []netip.Addr
	for _, nic := range a.interfaces {
		for _, entry := range nic.Addresses {
			addr, err := netip.ParseAddr(entry.Address)
			if err != nil || addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast() {
				continue
			}
			out = append(out, addr.Unmap().WithZone(""))
		}
	}
	return out
}
