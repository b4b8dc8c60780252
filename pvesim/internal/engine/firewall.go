// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"crypto/sha1" //nolint:gosec // Proxmox's digests are SHA-1
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
)

// firewallState holds the firewall's files by scope: "vm-100", "host-pve1" or "cluster". A VM's file does not need the VM.
type firewallState struct {
	files  map[string]*firewallFile
	groups map[string]*securityGroup
}

func vmScope(vmid int) string { return "vm-" + strconv.Itoa(vmid) }

// scope is the file that a request is about.
func scope(r *Request) string {
	switch {
	case r.vmid != 0:
		return vmScope(r.vmid)
	case r.host != "":
		return "host-" + r.host
	default:
		return "cluster"
	}
}

type firewallFile struct {
	options map[string]string
	rules   []map[string]string
	ipsets  map[string][]map[string]string
	aliases map[string]map[string]string
}

type securityGroup struct {
	comment string
	rules   []map[string]string
}

func newFirewallState() *firewallState {
	return &firewallState{files: map[string]*firewallFile{}, groups: map[string]*securityGroup{}}
}

func newFirewallFile() *firewallFile {
	return &firewallFile{options: map[string]string{}, ipsets: map[string][]map[string]string{}, aliases: map[string]map[string]string{}}
}

func (s *firewallState) file(scope string) *firewallFile {
	f := s.files[scope]
	if f == nil {
		f = newFirewallFile()
		s.files[scope] = f
	}
	return f
}

// clone copies a template's file: its security groups come along.
func (s *firewallState) clone(from, to int) {
	f := s.files[vmScope(from)]
	if f == nil {
		delete(s.files, vmScope(to))
		return
	}
	out := newFirewallFile()
	maps.Copy(out.options, f.options)
	out.rules = cloneRules(f.rules)
	for k, v := range f.ipsets {
		out.ipsets[k] = cloneRules(v)
	}
	for k, v := range f.aliases {
		out.aliases[k] = cloneRules([]map[string]string{v})[0]
	}
	s.files[vmScope(to)] = out
}

func cloneRules(rules []map[string]string) []map[string]string {
	out := make([]map[string]string, 0, len(rules))
	for _, r := range rules {
		out = append(out, maps.Clone(r))
	}
	return out
}

func (s *firewallState) forget(vmid int) { delete(s.files, vmScope(vmid)) }

// digest of an absent section is the digest of an empty file.
func digestOf(v ...any) string {
	text := ""
	for _, x := range v {
		if t := fmt.Sprint(x); t != "map[]" && t != "[]" {
			text += t
		}
	}
	sum := sha1.Sum([]byte(text)) //nolint:gosec // see the import
	return hex.EncodeToString(sum[:])
}

// AddSecurityGroup defines a security group with no rules.
func (e *Engine) AddSecurityGroup(name, comment string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.firewall.groups[name] = &securityGroup{comment: comment}
}

var firewallNumbers = []string{"enable", "dhcp", "ipfilter", "macfilter", "ndp", "radv", "ipversion", "nf_conntrack_max"}

func firewallRow(fields map[string]string) row {
	out := row{}
	for k, v := range fields {
		out[k] = v
		if slices.Contains(firewallNumbers, k) {
			if n, err := strconv.Atoi(v); err == nil {
				out[k] = n
			}
		}
	}
	return out
}

// firewallParams are a request's parameters without those that address the object.
func firewallParams(r *Request) map[string]string {
	out := map[string]string{}
	for k, v := range r.Params.Values {
		if !slices.Contains([]string{"node", "vmid", "group", "pos", "digest", "delete", "moveto", "name", "rename"}, k) {
			out[k] = v
		}
	}
	return out
}

// lockFirewall serialises writers of one VM's file. Without quorum it fails after its time-out.
func (e *Engine) lockFirewall(ctx context.Context, r *Request) (func(), error) {
	name := "firewall-" + scope(r)
	if err := e.clusterLockQuorum(ctx, name); err != nil {
		return nil, err
	}
	return e.Locks.Cluster(ctx, name, 10*time.Second)
}

// clusterLockQuorum: without quorum nobody gets a cluster lock, which shows after ten seconds of trying.
func (e *Engine) clusterLockQuorum(ctx context.Context, name string) error {
	if e.checkQuorum() == nil {
		return nil
	}
	if err := e.Clock.Sleep(ctx, 10*time.Second); err != nil {
		return err
	}
	return failf("cfs-lock '%s' error: no quorum!", name)
}

// rulesOf gives access to the list of rules that a request is about.
func (e *Engine) rulesOf(r *Request) (*[]map[string]string, error) {
	name, isGroup := r.value("group")
	if !isGroup {
		return &e.firewall.file(scope(r)).rules, nil
	}
	g := e.firewall.groups[name]
	if g == nil {
		return nil, failf("no such security group '%s'", name)
	}
	return &g.rules, nil
}

func (e *Engine) getRules(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	rules, err := e.rulesOf(r)
	if err != nil {
		return Response{}, err
	}
	rows := []row{}
	for i, rule := range *rules {
		out := firewallRow(rule)
		out["pos"], out["digest"] = i, digestOf(*rules)
		rows = append(rows, out)
	}
	return Response{Data: rows}, nil
}

func (e *Engine) rule(r *Request) (*[]map[string]string, int, error) {
	rules, err := e.rulesOf(r)
	if err != nil {
		return nil, 0, err
	}
	pos := r.integer("pos", -1)
	if pos < 0 || pos >= len(*rules) {
		return nil, 0, failf("no rule at position %d", pos)
	}
	if d, ok := r.value("digest"); ok && d != digestOf(*rules) {
		return nil, 0, failf("detected modified configuration - file changed by other user? Try again.")
	}
	return rules, pos, nil
}

func (e *Engine) getRule(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	rules, pos, err := e.rule(r)
	if err != nil {
		return Response{}, err
	}
	out := firewallRow((*rules)[pos])
	// The position is a number in the list and a string here.
	out["pos"], out["digest"] = strconv.Itoa(pos), digestOf(*rules)
	return Response{Data: out}, nil
}

// completeRule checks what needs several fields and derives the address family.
func (e *Engine) completeRule(rule map[string]string) error {
	for _, port := range []string{"dport", "sport"} {
		if rule[port] != "" && rule["proto"] == "" && rule["macro"] == "" {
			return badParam("proto", e.Schema.RequiresText, port)
		}
	}
	for _, side := range []string{"source", "dest"} {
		if p, err := netip.ParsePrefix(rule[side]); err == nil {
			rule["ipversion"] = family(p.Addr())
		} else if a, err := netip.ParseAddr(rule[side]); err == nil {
			rule["ipversion"] = family(a)
		}
	}
	if _, ok := rule["enable"]; !ok {
		rule["enable"] = "0"
	}
	return nil
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "4"
	}
	return "6"
}

// postRule inserts at the front. Groups that do not exist and rules that are there already are accepted.
func (e *Engine) postRule(ctx context.Context, r *Request) (Response, error) {
	release, err := e.lockFirewall(ctx, r)
	if err != nil {
		return Response{}, failf("%v", err)
	}
	defer release()
	e.mu.Lock()
	defer e.mu.Unlock()
	rules, err := e.rulesOf(r)
	if err != nil {
		return Response{}, err
	}
	rule := firewallParams(r)
	if err := e.completeRule(rule); err != nil {
		return Response{}, err
	}
	pos := min(max(r.integer("pos", 0), 0), len(*rules))
	*rules = slices.Insert(*rules, pos, rule)
	return Response{}, nil
}

func (e *Engine) putRule(ctx context.Context, r *Request) (Response, error) {
	release, err := e.lockFirewall(ctx, r)
	if err != nil {
		return Response{}, failf("%v", err)
	}
	defer release()
	e.mu.Lock()
	defer e.mu.Unlock()
	rules, pos, err := e.rule(r)
	if err != nil {
		return Response{}, err
	}
	rule := (*rules)[pos]
	if to := r.integer("moveto", -1); to >= 0 {
		*rules = slices.Delete(*rules, pos, pos+1)
		*rules = slices.Insert(*rules, min(to, len(*rules)), rule)
		return Response{}, nil
	}
	maps.Copy(rule, firewallParams(r))
	for _, k := range schema.SplitList(r.Params.Values["delete"]) {
		delete(rule, k)
	}
	return Response{}, e.completeRule(rule)
}

func (e *Engine) deleteRule(ctx context.Context, r *Request) (Response, error) {
	release, err := e.lockFirewall(ctx, r)
	if err != nil {
		return Response{}, failf("%v", err)
	}
	defer release()
	e.mu.Lock()
	defer e.mu.Unlock()
	rules, pos, err := e.rule(r)
	if err != nil {
		return Response{}, err
	}
	*rules = slices.Delete(*rules, pos, pos+1)
	return Response{}, nil
}

func (e *Engine) getFirewallOptions(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	options := e.firewall.file(scope(r)).options
	out := firewallRow(options)
	out["digest"] = digestOf(options)
	return Response{Data: out}, nil
}

func (e *Engine) putFirewallOptions(ctx context.Context, r *Request) (Response, error) {
	release, err := e.lockFirewall(ctx, r)
	if err != nil {
		return Response{}, failf("%v", err)
	}
	defer release()
	e.mu.Lock()
	defer e.mu.Unlock()
	options := e.firewall.file(scope(r)).options
	if d, ok := r.value("digest"); ok && d != digestOf(options) {
		return Response{}, failf("detected modified configuration - file changed by other user? Try again.")
	}
	maps.Copy(options, firewallParams(r))
	for _, k := range schema.SplitList(r.Params.Values["delete"]) {
		delete(options, k)
	}
	return Response{}, nil
}

func (e *Engine) getGroups(context.Context, *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	rows := []row{}
	for _, name := range slices.Sorted(maps.Keys(e.firewall.groups)) {
		out := row{"group": name, "digest": digestOf(slices.Sorted(maps.Keys(e.firewall.groups)))}
		if c := e.firewall.groups[name].comment; c != "" {
			out["comment"] = c
		}
		rows = append(rows, out)
	}
	return Response{Data: rows}, nil
}

func (e *Engine) postGroup(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	name := r.Params.Values["group"]
	if e.firewall.groups[name] != nil && r.Params.Values["rename"] == "" {
		return Response{}, badParam("group", "Security group '%s' already exists", name)
	}
	group := &securityGroup{comment: r.Params.Values["comment"]}
	if old, ok := r.value("rename"); ok {
		if e.firewall.groups[old] == nil {
			return Response{}, badParam("rename", "Security group '%s' does not exist", old)
		}
		group.rules = e.firewall.groups[old].rules
		delete(e.firewall.groups, old)
	}
	e.firewall.groups[name] = group
	return Response{}, nil
}

func (e *Engine) deleteGroup(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	name := r.Params.Values["group"]
	g := e.firewall.groups[name]
	if g == nil {
		return Response{}, nil
	}
	if len(g.rules) > 0 {
		return Response{}, failf("Security group '%s' is not empty", name)
	}
	delete(e.firewall.groups, name)
	return Response{}, nil
}

// FirewallGroups are the security groups in the firewall files of VMs, also of those that are gone.
func (e *Engine) FirewallGroups() map[int][]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := map[int][]string{}
	for scope, file := range e.firewall.files {
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
