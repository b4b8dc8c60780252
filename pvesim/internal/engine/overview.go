// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"strings"
	"time"
)

// Overview is the state of the cluster for people.
type Overview struct {
	Cluster, Version string
	Quorate          bool
	Hosts            []HostView
	Guests           []GuestView
	Storages         []StorageView
	Tasks            []TaskView
}

// HostView is a host with what its guests are configured to use.
type HostView struct {
	Name, Status           string
	CPUs, GuestCPUs        int
	Memory, GuestMemory    int64
	Running, Guests, Tasks int
}

// GuestView is a VM or container.
type GuestView struct {
	VMID                           int
	Name, Host, Status, Lock, Tags string
	CPUs                           int
	Memory                         int64
	Uptime                         time.Duration
	Template                       bool
}

// StorageView is a storage on one host, or everywhere if shared.
type StorageView struct {
	ID, Type, Host string
	Used, Size     int64
	Volumes        int
	Full           bool
}

// TaskView is a task.
type TaskView struct {
	UPID, Type, ID, Host, User, Status string
	Start                              time.Time
	Running                            bool
}

// Overview reads everything at once.
func (e *Engine) Overview(maxTasks int) Overview {
	out := Overview{Cluster: e.name, Version: e.Version.Full}
	running := map[string]int{}
	for _, t := range e.Tasks.List() {
		s := t.State()
		if s.Running {
			running[t.UPID.Host]++
		}
		if len(out.Tasks) >= maxTasks {
			continue
		}
		status := s.Exit
		if s.Running {
			status = "running"
		}
		out.Tasks = append(out.Tasks, TaskView{
			UPID: t.UPID.String(), Type: t.UPID.Type, ID: t.UPID.ID, Host: t.UPID.Host, User: t.UPID.User, Status: status,
			Start: time.Unix(t.UPID.StartTime, 0), Running: s.Running,
		})
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	out.Quorate = !e.noQuorum
	hosts := map[string]*HostView{}
	for _, h := range e.hosts {
		hosts[h.Name] = &HostView{Name: h.Name, Status: h.status(), CPUs: h.CPUs(), Memory: h.Memory, Tasks: running[h.Name]}
	}
	for _, g := range e.sortedGuests() {
		out.Guests = append(out.Guests, e.guestView(g))
		if h := hosts[g.Host]; h != nil && !g.Config.IsTemplate() {
			h.Guests++
			if g.running() {
				h.Running++
				h.GuestCPUs += e.guestCPUs(g)
				h.GuestMemory += g.memory()
			}
		}
	}
	for _, h := range e.hosts {
		out.Hosts = append(out.Hosts, *hosts[h.Name])
	}
	out.Storages = e.storageViews()
	return out
}

func (e *Engine) guestView(g *Guest) GuestView {
	v := GuestView{
		VMID: g.VMID, Name: g.name(), Host: g.Host, Status: g.qmpStatus(), Lock: g.Config.Lock(), Tags: strings.ReplaceAll(g.Config.Options["tags"], ";", " "),
		CPUs: e.guestCPUs(g), Memory: g.memory(), Template: g.Config.IsTemplate(),
	}
	if g.running() {
		v.Uptime = time.Since(g.uptime).Truncate(time.Second)
	}
	return v
}

func (e *Engine) storageViews() []StorageView {
	counts, used := e.volumeCounts(), e.usages()
	var out []StorageView
	for _, s := range e.allStorages() {
		hosts := []string{""}
		if !s.Shared {
			hosts = nil
			for _, h := range e.hosts {
				if s.availableOn(h.Name) {
					hosts = append(hosts, h.Name)
				}
			}
		}
		for _, h := range hosts {
			key := s.ID + "|" + h
			out = append(out, StorageView{
				ID: s.ID, Type: s.Type, Host: cmp.Or(h, "shared"), Used: min(s.BaseUsed+used[key], s.Size), Size: s.Size, Volumes: counts[key], Full: s.Full,
			})
		}
	}
	return out
}
