// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package firewall serves the firewall configuration of the cluster, its hosts and its VMs. It has no effect on
// traffic.
package firewall

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
)

// Firewall holds the firewall files by scope: "vm-100", "host-pve1" or "cluster". The file of a VM can exist without
// the VM.
type Firewall struct {
	k      *kernel.Kernel
	files  map[string]*file
	groups map[string]*securityGroup
}

type file struct {
	options map[string]string
	rules   []map[string]string
	ipsets  map[string][]map[string]string
	aliases map[string]map[string]string
}

type securityGroup struct {
	comment string
	rules   []map[string]string
}

// New returns a firewall without rules.
func New(k *kernel.Kernel) *Firewall {
	return &Firewall{k: k, files: map[string]*file{}, groups: map[string]*securityGroup{}}
}

func vmScope(vmid int) string { return "vm-" + strconv.Itoa(vmid) }

// scope returns the scope of a request.
func scope(r *api.Request) string {
	switch {
	case r.VMID != 0:
		return vmScope(r.VMID)
	case r.Host != "":
		return "host-" + r.Host
	default:
		return "cluster"
	}
}

func newFile() *file {
	return &file{options: map[string]string{}, ipsets: map[string][]map[string]string{}, aliases: map[string]map[string]string{}}
}

func (fw *Firewall) file(scope string) *file {
	f := fw.files[scope]
	if f == nil {
		f = newFile()
		fw.files[scope] = f
	}
	return f
}

// CloneVM copies the firewall file of a VM, including the rules that reference security groups. The caller holds the
// mutex.
func (fw *Firewall) CloneVM(from, to int) {
	f := fw.files[vmScope(from)]
	if f == nil {
		delete(fw.files, vmScope(to))
		return
	}
	out := newFile()
	maps.Copy(out.options, f.options)
	out.rules = cloneRules(f.rules)
	for k, v := range f.ipsets {
		out.ipsets[k] = cloneRules(v)
	}
	for k, v := range f.aliases {
		out.aliases[k] = cloneRules([]map[string]string{v})[0]
	}
	fw.files[vmScope(to)] = out
}

func cloneRules(rules []map[string]string) []map[string]string {
	out := make([]map[string]string, 0, len(rules))
	for _, r := range rules {
		out = append(out, maps.Clone(r))
	}
	return out
}

// RemoveVM removes the firewall file of a VM. The caller holds the mutex.
func (fw *Firewall) RemoveVM(vmid int) { delete(fw.files, vmScope(vmid)) }

// AddSecurityGroup adds a security group without rules.
func (fw *Firewall) AddSecurityGroup(name, comment string) {
	fw.k.Mu.Lock()
	defer fw.k.Mu.Unlock()
	fw.groups[name] = &securityGroup{comment: comment}
}

var numericFields = []string{"enable", "dhcp", "ipfilter", "macfilter", "ndp", "radv", "ipversion", "nf_conntrack_max"}

func newRow(fields map[string]string) api.Row {
	out := api.Row{}
	for k, v := range fields {
		out[k] = v
		if slices.Contains(numericFields, k) {
			if n, err := strconv.Atoi(v); err == nil {
				out[k] = n
			}
		}
	}
	return out
}

// params returns the parameters of a request without those that identify the object.
func params(r *api.Request) map[string]string {
	return api.ParamsExcept(r, "node", "vmid", "group", "pos", "digest", "delete", "moveto", "name", "rename")
}

// locked returns the handler of a change under the lock of its file. Without quorum it fails after the lock timeout.
func (fw *Firewall) locked(change func(r *api.Request) error) api.Handler {
	return func(ctx context.Context, r *api.Request) (api.Response, error) {
		name := "firewall-" + scope(r)
		if err := fw.k.CheckLockQuorum(ctx, r, name); err != nil {
			return api.Response{}, api.Failf("%v", err)
		}
		release, err := fw.k.Locks.Cluster(ctx, name, 10*time.Second)
		if err != nil {
			return api.Response{}, api.Failf("%v", err)
		}
		defer release()
		return kernel.Change(fw.k, change)(ctx, r)
	}
}

// FirewallGroups returns the security groups in the firewall files of VMs, including VMs that no longer exist.
func (fw *Firewall) FirewallGroups() map[int][]string {
	fw.k.Mu.Lock()
	defer fw.k.Mu.Unlock()
	out := map[int][]string{}
	for scope, file := range fw.files {
		text, ok := strings.CutPrefix(scope, "vm-")
		vmid, err := strconv.Atoi(text)
		if !ok || err != nil {
			continue
		}
		out[vmid] = []string{}
		for _, rule := range file.rules {
			if rule["type"] == "group" {
				out[vmid] = append(out[vmid], rule["action"])
			}
		}
	}
	return out
}

// Handlers by kind of object.
type (
	ruleHandlers   struct{ *Firewall }
	optionHandlers struct{ *Firewall }
	groupHandlers  struct{ *Firewall }
	ipsetHandlers  struct{ *Firewall }
	aliasHandlers  struct{ *Firewall }
)

// Routes returns the handlers of the firewall by method.
func (fw *Firewall) Routes() map[string]api.Handler {
	const groups = " /cluster/firewall/groups"
	sgs, rules, options := groupHandlers{fw}, ruleHandlers{fw}, optionHandlers{fw}
	ipsets, aliases := ipsetHandlers{fw}, aliasHandlers{fw}
	read := func(f func(r *api.Request) (any, error)) api.Handler { return kernel.Read(fw.k, f) }
	write := func(f func(r *api.Request) error) api.Handler { return kernel.Change(fw.k, f) }
	out := map[string]api.Handler{
		"GET /cluster/firewall":              api.Index("name", "rules", "options", "groups", "ipset", "aliases"),
		"GET" + groups:                       read(sgs.getGroups),
		"POST" + groups:                      write(sgs.postGroup),
		"GET" + groups + "/{group}":          read(rules.getRules),
		"POST" + groups + "/{group}":         fw.locked(rules.postRule),
		"DELETE" + groups + "/{group}":       write(sgs.deleteGroup),
		"GET" + groups + "/{group}/{pos}":    read(rules.getRule),
		"PUT" + groups + "/{group}/{pos}":    fw.locked(rules.putRule),
		"DELETE" + groups + "/{group}/{pos}": fw.locked(rules.deleteRule),
		"GET /nodes/{node}/firewall/options": read(options.getOptions),
		"PUT /nodes/{node}/firewall/options": fw.locked(options.putOptions),
		"GET /nodes/{node}/firewall/rules":   read(rules.getRules),
	}
	for _, at := range []string{" /cluster/firewall", " /nodes/{node}/qemu/{vmid}/firewall"} {
		maps.Copy(out, map[string]api.Handler{
			"GET" + at + "/options":                read(options.getOptions),
			"PUT" + at + "/options":                fw.locked(options.putOptions),
			"GET" + at + "/rules":                  read(rules.getRules),
			"POST" + at + "/rules":                 fw.locked(rules.postRule),
			"GET" + at + "/rules/{pos}":            read(rules.getRule),
			"PUT" + at + "/rules/{pos}":            fw.locked(rules.putRule),
			"DELETE" + at + "/rules/{pos}":         fw.locked(rules.deleteRule),
			"GET" + at + "/ipset":                  read(ipsets.getIPSets),
			"POST" + at + "/ipset":                 write(ipsets.postIPSet),
			"GET" + at + "/ipset/{name}":           read(ipsets.getIPSet),
			"POST" + at + "/ipset/{name}":          write(ipsets.postIPSetEntry),
			"DELETE" + at + "/ipset/{name}":        write(ipsets.deleteIPSet),
			"GET" + at + "/ipset/{name}/{cidr}":    read(ipsets.getIPSetEntry),
			"PUT" + at + "/ipset/{name}/{cidr}":    write(ipsets.putIPSetEntry),
			"DELETE" + at + "/ipset/{name}/{cidr}": write(ipsets.deleteIPSetEntry),
			"GET" + at + "/aliases":                read(aliases.getAliases),
			"POST" + at + "/aliases":               write(aliases.postAlias),
			"GET" + at + "/aliases/{name}":         read(aliases.getAlias),
			"PUT" + at + "/aliases/{name}":         write(aliases.putAlias),
			"DELETE" + at + "/aliases/{name}":      write(aliases.deleteAlias),
		})
	}
	return out
}

func (oh *optionHandlers) getOptions(r *api.Request) (any, error) {
	options := oh.file(scope(r)).options
	out := newRow(options)
	out["digest"] = api.Digest(options)
	return out, nil
}

func (oh *optionHandlers) putOptions(r *api.Request) error {
	options := oh.file(scope(r)).options
	if d, ok := r.Value("digest"); ok && d != api.Digest(options) {
		return api.Failf("detected modified configuration - file changed by other user? Try again.")
	}
	maps.Copy(options, params(r))
	api.DeleteListed(r, options)
	return nil
}
