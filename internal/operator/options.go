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

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/garbagecollection"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/launch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/vmhealth"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
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
	TemplateVMIDs           placement.Range
	TemplateBuilds          int
	TemplateGrace           time.Duration
	VMMemoryOverheadPercent float64
	PollInterval            time.Duration
	CloneSlots              int
	TaskTimeout             time.Duration
	LaunchRetryTimeout      time.Duration
	JoinTokenTTL            time.Duration
	ShutdownTimeout         time.Duration
	HostRemovedAfter        time.Duration
	MigratedDriftAfter      time.Duration
	HostDriftAfter          time.Duration
	PCIResources            instancetype.Devices
	Pricing                 instancetype.Pricing
	VolumeLimits            map[string]int
	DialTimeout             time.Duration
	ResponseTimeout         time.Duration
	StaticCapacityTimeout   time.Duration
	OperationTimeout        time.Duration
	SlowClone, TooSlowClone time.Duration
	FailureBackoff          launch.FailureBackoff
	Restarts                vmhealth.RestartPolicy
	Repair                  cloudprovider.RepairTolerations
	Orphans                 garbagecollection.Rules

	problems []string
}

// Option is one setting: docs and parsing come from the same table.
type Option struct {
	Flag, Env, Default, Help string
	set                      func(*Options, string) error
}

// CloudConfigVariable names the file with the Proxmox clusters, which the chart
// mounts by itself.
const CloudConfigVariable = "CLOUD_CONFIG"

// ChartValue is the option's name below settings in the chart's values:
// proxmoxPollInterval for PROXMOX_POLL_INTERVAL.
func (o Option) ChartValue() string {
	words := strings.Split(strings.ToLower(o.Env), "_")
	for i, word := range words[1:] {
		words[i+1] = strings.ToUpper(word[:1]) + word[1:]
	}
	return strings.Join(words, "")
}

// Table lists the settings of the Proxmox provider, beside Karpenter's own.
func OptionTable() []Option {
	return []Option{
		{"cloud-config", CloudConfigVariable, "", "Path of the cloud config: the Proxmox clusters and their credentials. Required.",
			text(func(o *Options) *string { return &o.CloudConfig })},
		{"instance-types-file", "INSTANCE_TYPES_FILE", "", "Path of a JSON file with instance types. Empty: the built-in catalogue.",
			text(func(o *Options) *string { return &o.InstanceTypesFile })},
		{"node-setting-file", "NODE_SETTING_FILE", "", "Path of a JSON file with reserves, overcommit ratios and topology of the Proxmox hosts.",
			text(func(o *Options) *string { return &o.NodeSettingFile })},
		{"node-policy", "NODE_POLICY", "simple", "How vCPUs and memory lie on a host, for NodeClasses without spec.cpu: simple (they float) or static (exclusive cores, bound NUMA cells).",
			oneOf(func(o *Options) *string { return &o.NodePolicy }, nodePolicySimple, nodePolicyStatic)},
		{"", "SYSTEM_NAMESPACE", "kube-system", "Namespace of the ConfigMap kube-root-ca.crt that boot data takes the cluster's CA from.",
			text(func(o *Options) *string { return &o.SystemNamespace })},
		{"proxmox-vmid", "PROXMOX_VMID", "20000", "Lowest VMID that VMs get.",
			number(func(o *Options) *int { return &o.VMIDFrom }, 100, 999_999_999)},
		{"proxmox-vmid-max", "PROXMOX_VMID_MAX", "99999", "Highest VMID that VMs get.",
			number(func(o *Options) *int { return &o.VMIDTo }, 100, 999_999_999)},
		{"proxmox-template-vmid", "PROXMOX_TEMPLATE_VMID", "1000", "Lowest VMID that templates of ProxmoxTemplates get.",
			number(func(o *Options) *int { return &o.TemplateVMIDs.From }, 100, 999_999_999)},
		{"proxmox-template-vmid-max", "PROXMOX_TEMPLATE_VMID_MAX", "19999", "Highest VMID that they get.",
			number(func(o *Options) *int { return &o.TemplateVMIDs.To }, 100, 999_999_999)},
		{"template-builds", "TEMPLATE_BUILDS", "16", "On how many hosts templates are made at once: downloads and imports of images.",
			number(func(o *Options) *int { return &o.TemplateBuilds }, 1, 1000)},
		{"template-grace", "TEMPLATE_GRACE", "1m", "How long a template of an older generation must have been without use before it is removed.",
			duration(func(o *Options) *time.Duration { return &o.TemplateGrace }, time.Second)},
		{"vm-memory-overhead-percent", "VM_MEMORY_OVERHEAD_PERCENT", "0.075", "Share of a VM's memory that its firmware and kernel take, between 0 and 1.",
			share(func(o *Options) *float64 { return &o.VMMemoryOverheadPercent })},
		{"pci-resources", "PCI_RESOURCES", "", "Which PCI resource mappings stand behind which extended resource, for example gpu-a100=nvidia.com/gpu,gpu-t4=nvidia.com/gpu.",
			parsed(func(o *Options) *instancetype.Devices { return &o.PCIResources }, instancetype.ParseDevices)},
		{"price-per-vcpu", "PRICE_PER_VCPU", "0.025", "Price of a vCPU. Prices have no currency: they are only compared.",
			price(func(o *Options) *float64 { return &o.Pricing.PerVCPU })},
		{"price-per-gb", "PRICE_PER_GB", "0.001", "Price of a GB (10^9 bytes) of memory.",
			price(func(o *Options) *float64 { return &o.Pricing.PerGB })},
		{"price-per-node", "PRICE_PER_NODE", "0.005", "What each node costs beside its size, so that fewer, larger nodes are cheaper.",
			price(func(o *Options) *float64 { return &o.Pricing.PerNode })},
		{"price-per-device", "PRICE_PER_DEVICE", "1", "Price of a PCI device. It keeps pods that need none off nodes that have one.",
			price(func(o *Options) *float64 { return &o.Pricing.PerDevice })},
		{"volume-attachment-limits", "VOLUME_ATTACHMENT_LIMITS", "csi.proxmox.sinextra.dev=24", "How many volumes of a CSI driver a new node takes, until the driver itself has told: driver=number, separated by commas.",
			parsed(func(o *Options) *map[string]int { return &o.VolumeLimits }, parseLimits)},
		{"proxmox-poll-interval", "PROXMOX_POLL_INTERVAL", "10s", "How often each Proxmox cluster is read. Proxmox itself refreshes its figures every 10s.",
			duration(func(o *Options) *time.Duration { return &o.PollInterval }, 100*time.Millisecond)},
		{"proxmox-clone-slots", "PROXMOX_CLONE_SLOTS", "4", "Clones and destroys at once per storage: on one host, or in the whole cluster where the storage is shared.",
			number(func(o *Options) *int { return &o.CloneSlots }, 1, 100)},
		{"proxmox-task-timeout", "PROXMOX_TASK_TIMEOUT", "10m", "How long one Proxmox task may take.",
			duration(func(o *Options) *time.Duration { return &o.TaskTimeout }, time.Second)},
		{"proxmox-dial-timeout", "PROXMOX_DIAL_TIMEOUT", "5s", "How long a connection to a Proxmox host may take, and its TLS handshake again. Then the next URL is tried.",
			duration(func(o *Options) *time.Duration { return &o.DialTimeout }, 100*time.Millisecond)},
		{"proxmox-response-timeout", "PROXMOX_RESPONSE_TIMEOUT", "45s", "How long one call to Proxmox may take. Proxmox itself gives up on a host that it passes a call to after 30s.",
			duration(func(o *Options) *time.Duration { return &o.ResponseTimeout }, time.Second)},
		{"clone-slow-after", "CLONE_SLOW_AFTER", "5m", "Clones that take longer are warned about on the NodeClass.",
			duration(func(o *Options) *time.Duration { return &o.SlowClone }, time.Second)},
		{"clone-refuse-after", "CLONE_REFUSE_AFTER", "10m", "Hosts where clones take longer are left out: Karpenter gives up on a replacement after 10m, and on a node that has not registered after 15m.",
			duration(func(o *Options) *time.Duration { return &o.TooSlowClone }, time.Second)},
		{"launch-retry-timeout", "LAUNCH_RETRY_TIMEOUT", "5m", "How long a launch is tried against passing troubles such as locks or an unreachable host.",
			duration(func(o *Options) *time.Duration { return &o.LaunchRetryTimeout }, time.Second)},
		{"launch-failure-backoff", "LAUNCH_FAILURE_BACKOFF", "3m", "How long an offering is avoided after a failed launch. It doubles while a pool fails for the same cause.",
			duration(func(o *Options) *time.Duration { return &o.FailureBackoff.Initial }, time.Second)},
		{"launch-failure-backoff-max", "LAUNCH_FAILURE_BACKOFF_MAX", "30m", "How long an offering is avoided at most.",
			duration(func(o *Options) *time.Duration { return &o.FailureBackoff.Max }, time.Second)},
		{"static-capacity-timeout", "STATIC_CAPACITY_TIMEOUT", "5m", "How long a claim of a static pool waits for room on its host before it is made anew, perhaps elsewhere.",
			duration(func(o *Options) *time.Duration { return &o.StaticCapacityTimeout }, time.Second)},
		{"join-token-ttl", "JOIN_TOKEN_TTL", "1h", "Life of a join token. It is deleted earlier, when its node is initialized.",
			duration(func(o *Options) *time.Duration { return &o.JoinTokenTTL }, time.Minute)},
		{"operation-timeout", "OPERATION_TIMEOUT", "15s", "How long one attempt to remove or to restart a VM waits for Proxmox, which goes on meanwhile; the next attempt finds what it did.",
			duration(func(o *Options) *time.Duration { return &o.OperationTimeout }, time.Second)},
		{"shutdown-timeout", "SHUTDOWN_TIMEOUT", "0s", "How long a guest may take to shut down before its VM is removed. 0: its power is cut, since its pods are gone already.",
			duration(func(o *Options) *time.Duration { return &o.ShutdownTimeout }, 0)},
		{"restart-backoff", "RESTART_BACKOFF", "1m", "How long a VM that was found stopped and started again is left alone before the next start. It doubles with each.",
			duration(func(o *Options) *time.Duration { return &o.Restarts.Backoff }, time.Second)},
		{"restart-limit", "RESTART_LIMIT", "4", "How many starts a VM gets that keeps stopping, before its node is replaced.",
			number(func(o *Options) *int { return &o.Restarts.Limit }, 1, 10)},
		{"repair-unready-toleration", "REPAIR_UNREADY_TOLERATION", "15m", "How long a node may be not ready or silent before it is replaced (feature gate NodeRepair).",
			duration(func(o *Options) *time.Duration { return &o.Repair.Unready }, time.Second)},
		{"repair-request-toleration", "REPAIR_REQUEST_TOLERATION", "1m", "How long the condition ProxmoxGuestUnhealthy or ProxmoxRebootRequired must stand before it is acted on (feature gate NodeRepair).",
			duration(func(o *Options) *time.Duration { return &o.Repair.Requested }, time.Second)},
		{"repair-drain-timeout", "REPAIR_DRAIN_TIMEOUT", "5m", "How long the drain of such a node may take.",
			duration(func(o *Options) *time.Duration { return &o.Repair.Drain }, time.Second)},
		{"host-removed-after", "HOST_REMOVED_AFTER", "10m", "How long a claim waits for a host that has left its Proxmox cluster before its VM counts as gone with it.",
			duration(func(o *Options) *time.Duration { return &o.HostRemovedAfter }, time.Second)},
		{"migrated-drift-after", "MIGRATED_DRIFT_AFTER", "0s", "How long after its VM was migrated to another host a node is replaced, since its zone label is wrong. 0: never.",
			duration(func(o *Options) *time.Duration { return &o.MigratedDriftAfter }, 0)},
		{"host-drift-after", "HOST_DRIFT_AFTER", "0s", "How long after its host went offline or into maintenance a node is replaced, within the pool's disruption budgets; one on a host that the settings exclude is replaced at once. 0: never.",
			duration(func(o *Options) *time.Duration { return &o.HostDriftAfter }, 0)},
		{"orphan-policy", "ORPHAN_POLICY", "remove", "What happens to VMs, boot drives, join tokens and nodes whose claim is gone: remove or report.",
			oneOf(func(o *Options) *garbagecollection.Policy { return &o.Orphans.Policy }, "remove", "report")},
		{"orphan-grace", "ORPHAN_GRACE", "1m", "How long something must have been without its claim before it is removed.",
			duration(func(o *Options) *time.Duration { return &o.Orphans.GracePeriod }, time.Second)},
		{"orphan-sweep-interval", "ORPHAN_SWEEP_INTERVAL", "5m", "How often join tokens are looked through for what has no claim. VMs and nodes are looked at with every poll, storages with boot drives one after the other as the idle budget of calls allows.",
			duration(func(o *Options) *time.Duration { return &o.Orphans.SweepInterval }, time.Second)},
		{"orphan-deletion-max-fraction", "ORPHAN_DELETION_MAX_FRACTION", "0.5", "Share of all VMs, between 0 and 1: when more of them (and more than three) look orphaned at once, none is removed.",
			share(func(o *Options) *float64 { return &o.Orphans.MaxFraction })},
	}
}

// AddFlags registers the flags, with the environment as their default.
func (o *Options) AddFlags(fs *coreoptions.FlagSet) {
	for _, opt := range OptionTable() {
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
	if o.Pricing == (instancetype.Pricing{}) {
		return fmt.Errorf("--price-per-vcpu, --price-per-gb, --price-per-node and --price-per-device are all 0: nothing would ever be cheaper than what there is")
	}
	if o.VMIDTo <= o.VMIDFrom {
		return fmt.Errorf("--proxmox-vmid-max (PROXMOX_VMID_MAX) is %d: it must be above --proxmox-vmid, which is %d", o.VMIDTo, o.VMIDFrom)
	}
	if o.TemplateVMIDs.To <= o.TemplateVMIDs.From {
		return fmt.Errorf("--proxmox-template-vmid-max (PROXMOX_TEMPLATE_VMID_MAX) is %d: it must be above --proxmox-template-vmid, which is %d", o.TemplateVMIDs.To, o.TemplateVMIDs.From)
	}
	if o.TooSlowClone <= o.SlowClone {
		return fmt.Errorf("--clone-refuse-after (CLONE_REFUSE_AFTER) is %s: it must be above --clone-slow-after, which is %s", o.TooSlowClone, o.SlowClone)
	}
	if o.FailureBackoff.Max < o.FailureBackoff.Initial {
		return fmt.Errorf("--launch-failure-backoff-max (LAUNCH_FAILURE_BACKOFF_MAX) is %s: it must not be below --launch-failure-backoff, which is %s", o.FailureBackoff.Max, o.FailureBackoff.Initial)
	}
	return nil
}

// ToContext carries the options, as Karpenter asks of an Injectable.
func (o *Options) ToContext(ctx context.Context) context.Context {
	return context.WithValue(ctx, optionsKey{}, o)
}

// Instances are the limits of the life of a VM.
func (o *Options) Instances() instance.Settings {
	s := instance.DefaultSettings()
	s.VMIDs.From, s.VMIDs.To = o.VMIDFrom, o.VMIDTo
	s.CloneSlots = o.CloneSlots
	s.TaskTimeout = o.TaskTimeout
	s.LaunchRetryTimeout = o.LaunchRetryTimeout
	s.ShutdownTimeout = o.ShutdownTimeout
	s.HostRemovedAfter = o.HostRemovedAfter
	s.StaticCapacityTimeout = o.StaticCapacityTimeout
	s.OperationTimeout = o.OperationTimeout
	s.SlowClone, s.TooSlowClone = o.SlowClone, o.TooSlowClone
	return s
}

// Templates are the limits of their making.
func (o *Options) Templates() template.Settings {
	s := template.DefaultSettings()
	s.VMIDs.From, s.VMIDs.To = o.TemplateVMIDs.From, o.TemplateVMIDs.To
	s.Builds = o.TemplateBuilds
	s.TaskTimeout = o.TaskTimeout
	s.Grace = o.TemplateGrace
	return s
}

func text(at func(*Options) *string) func(*Options, string) error {
	return func(o *Options, v string) error { *at(o) = v; return nil }
}

func oneOf[T ~string](at func(*Options) *T, allowed ...string) func(*Options, string) error {
	return func(o *Options, v string) error {
		if !slices.Contains(allowed, v) {
			return fmt.Errorf("found %q, want one of %s", v, strings.Join(allowed, ", "))
		}
		*at(o) = T(v)
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

func price(at func(*Options) *float64) func(*Options, string) error {
	return func(o *Options, v string) error {
		f, err := strconv.ParseFloat(v, 64)
		// The other way round NaN would pass.
		if inside := f >= 0 && f <= maxPrice; err != nil || !inside {
			return fmt.Errorf("found %q, want a number from 0 to %d, for example 0.025", v, maxPrice)
		}
		*at(o) = f
		return nil
	}
}

// maxPrice leaves room to add prices up.
const maxPrice = 1_000_000

// parsed reads a setting with a grammar of its own.
func parsed[T any](at func(*Options) *T, parse func(string) (T, error)) func(*Options, string) error {
	return func(o *Options, v string) error {
		value, err := parse(v)
		if err == nil {
			*at(o) = value
		}
		return err
	}
}

// parseLimits reads "driver=number,driver=number".
func parseLimits(v string) (map[string]int, error) {
	limits := map[string]int{}
	for entry := range strings.SplitSeq(v, ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		driver, number, _ := strings.Cut(entry, "=")
		n, err := strconv.Atoi(number)
		if err != nil || n < 0 || driver == "" {
			return nil, fmt.Errorf("found %q, want <CSI driver>=<number>, for example csi.proxmox.sinextra.dev=24", entry)
		}
		limits[driver] = n
	}
	return limits, nil
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
