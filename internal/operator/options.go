// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"
)

// Karpenter collects flags through this package variable.
func init() { coreoptions.Injectables = append(coreoptions.Injectables, &Options{}) }

type optionsKey struct{}

// Options are the flags and environment variables of the Proxmox provider. A flag
// wins over its variable.
type Options struct {
	CloudConfig             string
	InstanceTypesFile       string
	NodeSettingFile         string
	NodePolicy              string
	SystemNamespace         string
	VMIDFrom, VMIDTo        int
	VMMemoryOverheadPercent float64
	PollInterval            time.Duration
	CloneSlots              int
	TaskTimeout             time.Duration
	LaunchPatience          time.Duration
	JoinTokenTTL            time.Duration
	ShutdownTimeout         time.Duration
	HostRemovedAfter        time.Duration
	MigratedDriftAfter      time.Duration
	OrphanPolicy            string
	OrphanGrace             time.Duration

	problems []string
}

// Option is one setting: docs and parsing come from the same table.
type Option struct {
	Flag, Env, Default, Help string
	set                      func(*Options, string) error
}

// Table lists the settings of the Proxmox provider, beside Karpenter's own.
func Table() []Option {
	return []Option{
		{"cloud-config", "CLOUD_CONFIG", "", "Path of the cloud config: the Proxmox clusters and their credentials. Required.",
			text(func(o *Options) *string { return &o.CloudConfig })},
		{"instance-types-file", "INSTANCE_TYPES_FILE", "", "Path of a JSON file with instance types. Empty: the built-in catalogue.",
			text(func(o *Options) *string { return &o.InstanceTypesFile })},
		{"node-setting-file", "NODE_SETTING_FILE", "", "Path of a JSON file with reserves, overcommit ratios and topology of the Proxmox hosts.",
			text(func(o *Options) *string { return &o.NodeSettingFile })},
		{"node-policy", "NODE_POLICY", "simple", "How vCPUs are laid out on a host: simple.",
			oneOf(func(o *Options) *string { return &o.NodePolicy }, "simple")},
		{"", "SYSTEM_NAMESPACE", "kube-system", "Namespace of the ConfigMap kube-root-ca.crt that boot data takes the cluster's CA from.",
			text(func(o *Options) *string { return &o.SystemNamespace })},
		{"proxmox-vmid", "PROXMOX_VMID", "20000", "Lowest VMID that VMs get.",
			number(func(o *Options) *int { return &o.VMIDFrom }, 100, 999_999_999)},
		{"proxmox-vmid-max", "PROXMOX_VMID_MAX", "99999", "Highest VMID that VMs get.",
			number(func(o *Options) *int { return &o.VMIDTo }, 100, 999_999_999)},
		{"vm-memory-overhead-percent", "VM_MEMORY_OVERHEAD_PERCENT", "0.075", "Share of a VM's memory that its firmware and kernel take, between 0 and 1.",
			share(func(o *Options) *float64 { return &o.VMMemoryOverheadPercent })},
		{"proxmox-poll-interval", "PROXMOX_POLL_INTERVAL", "10s", "How often each Proxmox cluster is read. Proxmox itself refreshes its figures every 10s.",
			duration(func(o *Options) *time.Duration { return &o.PollInterval }, 100*time.Millisecond)},
		{"proxmox-clone-slots", "PROXMOX_CLONE_SLOTS", "4", "Clones and destroys at once per storage: on one host, or in the whole cluster where the storage is shared.",
			number(func(o *Options) *int { return &o.CloneSlots }, 1, 100)},
		{"proxmox-task-timeout", "PROXMOX_TASK_TIMEOUT", "10m", "How long one Proxmox task may take.",
			duration(func(o *Options) *time.Duration { return &o.TaskTimeout }, time.Second)},
		{"launch-patience", "LAUNCH_PATIENCE", "5m", "How long a launch is tried against passing troubles such as locks or an unreachable host.",
			duration(func(o *Options) *time.Duration { return &o.LaunchPatience }, time.Second)},
		{"join-token-ttl", "JOIN_TOKEN_TTL", "1h", "Life of a join token. It is deleted earlier, when its node is initialized.",
			duration(func(o *Options) *time.Duration { return &o.JoinTokenTTL }, time.Minute)},
		{"shutdown-timeout", "SHUTDOWN_TIMEOUT", "0s", "How long a guest may take to shut down before its VM is removed. 0: its power is cut, since its pods are gone already.",
			duration(func(o *Options) *time.Duration { return &o.ShutdownTimeout }, 0)},
		{"host-removed-after", "HOST_REMOVED_AFTER", "10m", "How long a claim waits for a host that has left its Proxmox cluster before its VM counts as gone with it.",
			duration(func(o *Options) *time.Duration { return &o.HostRemovedAfter }, time.Second)},
		{"migrated-drift-after", "MIGRATED_DRIFT_AFTER", "0s", "How long after its VM was migrated to another host a node is replaced, since its zone label is wrong. 0: never.",
			duration(func(o *Options) *time.Duration { return &o.MigratedDriftAfter }, 0)},
		{"orphan-policy", "ORPHAN_POLICY", "remove", "What happens to VMs, boot drives, join tokens and nodes whose claim is gone: remove or report.",
			oneOf(func(o *Options) *string { return &o.OrphanPolicy }, "remove", "report")},
		{"orphan-grace", "ORPHAN_GRACE", "1m", "How long something must have been without its claim before it is removed.",
			duration(func(o *Options) *time.Duration { return &o.OrphanGrace }, time.Second)},
	}
}

// AddFlags registers the flags, with the environment as their default.
func (o *Options) AddFlags(fs *coreoptions.FlagSet) {
	for _, opt := range Table() {
		from := "default"
		value := opt.Default
		if v, ok := os.LookupEnv(opt.Env); ok && v != "" {
			from, value = opt.Env, v
		}
		if err := opt.set(o, value); err != nil {
			o.problems = append(o.problems, from+": "+err.Error())
		}
		if opt.Flag != "" {
			fs.Func(opt.Flag, fmt.Sprintf("%s [%s] (default %q)", opt.Help, opt.Env, opt.Default), func(v string) error { return opt.set(o, v) })
		}
	}
}

// Parse reads the flags and holds the settings against each other.
func (o *Options) Parse(fs *coreoptions.FlagSet, args ...string) error {
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			os.Exit(0)
		}
		return err
	}
	if len(o.problems) > 0 {
		return errors.New(strings.Join(o.problems, "; "))
	}
	if o.CloudConfig == "" {
		return fmt.Errorf("--cloud-config (CLOUD_CONFIG) is empty: give the path of the file that lists the Proxmox clusters")
	}
	if o.VMIDTo <= o.VMIDFrom {
		return fmt.Errorf("--proxmox-vmid-max (PROXMOX_VMID_MAX) is %d: it must be above --proxmox-vmid, which is %d", o.VMIDTo, o.VMIDFrom)
	}
	return nil
}

// ToContext carries the options, as Karpenter asks of an Injectable.
func (o *Options) ToContext(ctx context.Context) context.Context {
	return context.WithValue(ctx, optionsKey{}, o)
}

func text(at func(*Options) *string) func(*Options, string) error {
	return func(o *Options, v string) error { *at(o) = v; return nil }
}

func oneOf(at func(*Options) *string, allowed ...string) func(*Options, string) error {
	return func(o *Options, v string) error {
		if !slices.Contains(allowed, v) {
			return fmt.Errorf("found %q, want one of %s", v, strings.Join(allowed, ", "))
		}
		*at(o) = v
		return nil
	}
}

func number(at func(*Options) *int, low, high int) func(*Options, string) error {
	return func(o *Options, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < low || n > high {
			return fmt.Errorf("found %q, want a whole number from %d to %d", v, low, high)
		}
		*at(o) = n
		return nil
	}
}

func share(at func(*Options) *float64) func(*Options, string) error {
	return func(o *Options, v string) error {
		f, err := strconv.ParseFloat(v, 64)
		// The other way round NaN would pass.
		if inside := f >= 0 && f < 1; err != nil || !inside {
			return fmt.Errorf("found %q, want a number from 0 to 1, for example 0.075", v)
		}
		*at(o) = f
		return nil
	}
}

func duration(at func(*Options) *time.Duration, low time.Duration) func(*Options, string) error {
	return func(o *Options, v string) error {
		d, err := time.ParseDuration(v)
		if err != nil || d < low {
			return fmt.Errorf("found %q, want a duration of at least %s, for example 30s or 5m", v, low)
		}
		*at(o) = d
		return nil
	}
}
