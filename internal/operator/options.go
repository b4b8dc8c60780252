// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/maintenance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/garbagecollection"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Karpenter collects flags through this package variable.
func init() { coreoptions.Injectables = append(coreoptions.Injectables, &Options{}) }

type optionsKey struct{}

// Options are the settings of the Proxmox provider, from flags and environment
// variables. A flag takes precedence over its variable. Each field has the name of
// its flag, variable and chart value; OptionTable has their meaning and defaults.
type Options struct {
	CloudConfig       string
	InstanceTypesFile string
	NodeSettingFile   string
	NodePolicy        string
	VMSizePolicy      v1alpha1.VMSizePolicy
	SystemNamespace   string

	ProxmoxVMID            int
	ProxmoxVMIDMax         int
	ProxmoxExcludedVMIDs   []int
	ProxmoxTemplateVMID    int
	ProxmoxTemplateVMIDMax int

	// VMMemoryOverheadPercent is nil if it is not set.
	VMMemoryOverheadPercent *float64
	PCIResources            instancetype.Devices
	PricePerVCPU            float64
	PricePerGB              float64
	PricePerNode            float64
	PricePerDevice          float64
	VolumeAttachmentLimits  map[string]int

	ProxmoxPollInterval    time.Duration
	ProxmoxCloneSlots      int
	ProxmoxTaskTimeout     time.Duration
	ProxmoxResponseTimeout time.Duration

	LaunchRetryTimeout time.Duration
	JoinTokenTTL       time.Duration
	ShutdownTimeout    time.Duration

	RepairUnreadyToleration   time.Duration
	RepairDrainTimeout        time.Duration
	HostDriftAfter            time.Duration
	HostMaintenancePolicy     maintenance.Policy
	HostMaintenanceTimeout    time.Duration
	OrphanPolicy              garbagecollection.Policy
	OrphanGracePeriod         time.Duration
	OrphanDeletionMaxFraction float64
	WebPagePort               int

	problems []string
}

// What no user can choose better.
const (
	// cloneSlowAfter is the duration of a clone above which the NodeClass reports a warning, and cloneRefuseAfter that
	// above which a host is not used. Core's timeouts are 10 minutes for a replacement and 15 for the registration of a Node.
	cloneSlowAfter, cloneRefuseAfter = 5 * time.Minute, 10 * time.Minute
	// hostRemovedAfter is how long a Host must be missing from its Proxmox cluster before its VMs and Templates count as
	// deleted.
	hostRemovedAfter = 10 * time.Minute
	// launchFailureBackoff is how long an offering is unavailable after a failed launch. It doubles while launches of a
	// NodePool fail with the same cause.
	launchFailureBackoff = 3 * time.Minute
	// templateGracePeriod is how long a Template of an older generation, or an image, must be unused before it is deleted.
	templateGracePeriod = time.Minute
	// repairRequestToleration is how long a condition that requests a repair must be true, so one that flaps has no effect.
	repairRequestToleration = time.Minute
	// operationTimeout is how long one attempt to delete or restart a VM waits for Proxmox. Proxmox continues the
	// task, and the next attempt reads its result.
	operationTimeout = 15 * time.Second
	// staticCapacityTimeout is how long a Claim of a static NodePool waits for capacity on its Host before it is
	// recreated, possibly on another Host. Core deletes Claims without a Node after 15 minutes, and counts them as
	// failed registrations.
	staticCapacityTimeout = 5 * time.Minute
	// restartBackoff is the delay between two starts of a VM that was found stopped. It doubles with each start. After
	// restartLimit starts, the Node is replaced.
	restartBackoff = time.Minute
	restartLimit   = 4
	// templateBuilds is on how many Hosts Templates are created at the same time. Each downloads and imports an image.
	templateBuilds = 16
)

// testDurations is the variable with which tests of the whole system change durations: name=duration, separated by commas.
const testDurations = "KARPENTER_PROXMOX_TEST_DURATIONS"

// durationFor returns a duration that is no setting, or the one that tests set.
func durationFor(name string, fixed time.Duration) time.Duration {
	for entry := range strings.SplitSeq(os.Getenv(testDurations), ",") {
		if key, value, _ := strings.Cut(entry, "="); key == name {
			if d, err := time.ParseDuration(value); err == nil {
				return d
			}
		}
	}
	return fixed
}

// Option is one setting. Flags, chart and reference page are generated from it.
type Option struct {
	Flag, Env, Default, Help string
	set                      func(*Options, string) error
}

// CloudConfigVariable is the path of the file with the Proxmox clusters, which the
// chart sets from its value configFile.
const CloudConfigVariable = "CLOUD_CONFIG"

// ChartValue returns the option's name below settings in the chart's values, for
// example proxmoxPollInterval for PROXMOX_POLL_INTERVAL.
func (o Option) ChartValue() string {
	words := strings.Split(strings.ToLower(o.Env), "_")
	for i, word := range words[1:] {
		words[i+1] = strings.ToUpper(word[:1]) + word[1:]
	}
	return strings.Join(words, "")
}

// OptionTable returns the settings of the Proxmox provider. It is the only place that
// defines their defaults.
func OptionTable() []Option { //nolint:funlen // a table
	return []Option{
		{"cloud-config", CloudConfigVariable, "", "Path of the cloud config, the file that lists the Proxmox clusters and their credentials (not cloud-init's #cloud-config). Required.",
			text(func(o *Options) *string { return &o.CloudConfig })},
		{"instance-types-file", "INSTANCE_TYPES_FILE", "", "Path of a JSON file with instance types. If empty, the built-in catalog is used.",
			text(func(o *Options) *string { return &o.InstanceTypesFile })},
		{"node-setting-file", "NODE_SETTING_FILE", "", "Path of a JSON file with reserved resources, overcommit ratios and topology of the Proxmox hosts.",
			text(func(o *Options) *string { return &o.NodeSettingFile })},
		{"node-policy", "NODE_POLICY", "simple", "Placement of vCPUs and memory on a host for NodeClasses without spec.cpu: simple (no pinning) or static (exclusive cores, bound NUMA cells).",
			oneOf(func(o *Options) *string { return &o.NodePolicy }, nodePolicySimple, nodePolicyStatic)},
		{"vm-size-policy", "VM_SIZE_POLICY", vmSizeAuto, "Size of VMs for NodeClasses without spec.vmSize.policy: Exact (what the pods need), InstanceType (the cheapest instance type that is large enough), or Auto (Exact, but InstanceType if instance-types-file is set).",
			oneOf(func(o *Options) *v1alpha1.VMSizePolicy { return &o.VMSizePolicy }, vmSizeAuto, string(v1alpha1.VMSizeExact), string(v1alpha1.VMSizeInstanceType))},
		{"", "SYSTEM_NAMESPACE", "kube-system", "Namespace of the ConfigMaps kube-root-ca.crt, from which boot data gets the cluster's CA, karpenter-proxmox-maintenance, which lists hosts in maintenance, karpenter-proxmox-fencing, which lists hosts that you powered off, and karpenter-proxmox-power, which lists hosts that were shut down to save energy.",
			text(func(o *Options) *string { return &o.SystemNamespace })},
		{"proxmox-vmid", "PROXMOX_VMID", "20000", "Lowest VMID of the VMs that the controller creates.",
			number(func(o *Options) *int { return &o.ProxmoxVMID }, 100, 999_999_999)},
		{"proxmox-vmid-max", "PROXMOX_VMID_MAX", "99999", "Highest VMID of the VMs that the controller creates.",
			number(func(o *Options) *int { return &o.ProxmoxVMIDMax }, 100, 999_999_999)},
		{"proxmox-excluded-vmids", "PROXMOX_EXCLUDED_VMIDS", "9999", "VMIDs that no VM and no template gets, separated by commas: those in the names of volumes that belong to no VM, such as the controllerVmID of the Proxmox CSI driver. Proxmox deletes an attached volume with the VM whose VMID is in its name.",
			parsed(func(o *Options) *[]int { return &o.ProxmoxExcludedVMIDs }, parseVMIDs)},
		{"proxmox-template-vmid", "PROXMOX_TEMPLATE_VMID", "1000", "Lowest VMID of templates that are created for ProxmoxTemplates.",
			number(func(o *Options) *int { return &o.ProxmoxTemplateVMID }, 100, 999_999_999)},
		{"proxmox-template-vmid-max", "PROXMOX_TEMPLATE_VMID_MAX", "19999", "Highest VMID of templates that are created for ProxmoxTemplates.",
			number(func(o *Options) *int { return &o.ProxmoxTemplateVMIDMax }, 100, 999_999_999)},
		{"vm-memory-overhead-percent", "VM_MEMORY_OVERHEAD_PERCENT", "", "Fraction of a VM's memory that its firmware and kernel use, between 0 and 1, for example 0.075. It applies until Nodes have reported their memory. If empty, it depends on the size of the VM.",
			parsed(func(o *Options) **float64 { return &o.VMMemoryOverheadPercent }, parseOptionalFraction)},
		{"pci-resources", "PCI_RESOURCES", "", "PCI resource mappings and the extended resources that they provide, for example gpu-a100=nvidia.com/gpu,gpu-t4=nvidia.com/gpu.",
			parsed(func(o *Options) *instancetype.Devices { return &o.PCIResources }, instancetype.ParseDevices)},
		{"price-per-vcpu", "PRICE_PER_VCPU", "0.025", "Price of a vCPU. Prices have no currency: Karpenter only compares them.",
			price(func(o *Options) *float64 { return &o.PricePerVCPU })},
		{"price-per-gb", "PRICE_PER_GB", "0.001", "Price of a GB (10^9 bytes) of memory.",
			price(func(o *Options) *float64 { return &o.PricePerGB })},
		{"price-per-node", "PRICE_PER_NODE", "0.005", "Price of a node regardless of its size, which makes fewer, larger nodes cheaper.",
			price(func(o *Options) *float64 { return &o.PricePerNode })},
		{"price-per-device", "PRICE_PER_DEVICE", "1", "Price of a PCI device, which keeps pods that need no device off nodes that have one.",
			price(func(o *Options) *float64 { return &o.PricePerDevice })},
		{"volume-attachment-limits", "VOLUME_ATTACHMENT_LIMITS", "csi.proxmox.sinextra.dev=24", "Maximum number of volumes of a CSI driver on a new node, until the driver reports its own limit: driver=number, separated by commas.",
			parsed(func(o *Options) *map[string]int { return &o.VolumeAttachmentLimits }, parseLimits)},
		{"proxmox-poll-interval", "PROXMOX_POLL_INTERVAL", shortDuration(inventory.DefaultPollInterval), "Interval at which each Proxmox cluster is polled. Proxmox itself updates its data every 10s.",
			duration(func(o *Options) *time.Duration { return &o.ProxmoxPollInterval }, 100*time.Millisecond)},
		{"proxmox-clone-slots", "PROXMOX_CLONE_SLOTS", "4", "Maximum number of clones, and separately of destroys, at the same time per storage: per host, or per cluster if the storage is shared.",
			number(func(o *Options) *int { return &o.ProxmoxCloneSlots }, 1, 100)},
		{"proxmox-task-timeout", "PROXMOX_TASK_TIMEOUT", "10m", "Maximum duration of one Proxmox task.",
			duration(func(o *Options) *time.Duration { return &o.ProxmoxTaskTimeout }, time.Second)},
		{"proxmox-response-timeout", "PROXMOX_RESPONSE_TIMEOUT", shortDuration(proxmox.DefaultResponseTimeout), "Timeout of one request to Proxmox. Proxmox's own timeout for a request that it forwards to another host is 30s.",
			duration(func(o *Options) *time.Duration { return &o.ProxmoxResponseTimeout }, time.Second)},
		{"launch-retry-timeout", "LAUNCH_RETRY_TIMEOUT", "5m", "How long a launch is retried after transient errors, such as locks or an unreachable host.",
			duration(func(o *Options) *time.Duration { return &o.LaunchRetryTimeout }, time.Second)},
		{"join-token-ttl", "JOIN_TOKEN_TTL", shortDuration(bootdata.DefaultTokenTTL), "Lifetime of a join token. It is deleted earlier, when its node is initialized.",
			duration(func(o *Options) *time.Duration { return &o.JoinTokenTTL }, time.Minute)},
		{"shutdown-timeout", "SHUTDOWN_TIMEOUT", "10s", "How long the guest of a ready node may take to shut down before its VM is stopped and deleted. VMs of other nodes are stopped immediately. With 0 all VMs are stopped immediately.",
			duration(func(o *Options) *time.Duration { return &o.ShutdownTimeout }, 0)},
		{"repair-unready-toleration", "REPAIR_UNREADY_TOLERATION", "15m", "How long a node may be NotReady or Unknown before it is replaced (feature gate NodeRepair).",
			duration(func(o *Options) *time.Duration { return &o.RepairUnreadyToleration }, time.Second)},
		{"repair-drain-timeout", "REPAIR_DRAIN_TIMEOUT", "5m", "Maximum duration of the drain of a node that is repaired because of one of these conditions.",
			duration(func(o *Options) *time.Duration { return &o.RepairDrainTimeout }, time.Second)},
		{"host-drift-after", "HOST_DRIFT_AFTER", "0s", "How long after its host went offline a node is replaced, within the disruption budgets of its NodePool. A node on a host that the settings exclude is replaced immediately. 0 disables both.",
			duration(func(o *Options) *time.Duration { return &o.HostDriftAfter }, 0)},
		{"host-maintenance-policy", "HOST_MAINTENANCE_POLICY", "drain", "What to do with the nodes of a host in maintenance: drain (replace them on other hosts, within the disruption budgets of their NodePools) or keep (leave them; the host only gets no new VMs).",
			oneOf(func(o *Options) *maintenance.Policy { return &o.HostMaintenancePolicy }, string(maintenance.PolicyDrain), string(maintenance.PolicyKeep))},
		{"host-maintenance-timeout", "HOST_MAINTENANCE_TIMEOUT", "30m", "How long after the start of a maintenance the NodeClaims that are still on the host are deleted, regardless of disruption budgets. PodDisruptionBudgets apply until the terminationGracePeriod of the NodeClaim ends. 0 disables it.",
			duration(func(o *Options) *time.Duration { return &o.HostMaintenanceTimeout }, 0)},
		{"orphan-policy", "ORPHAN_POLICY", "delete", "What to do with VMs, boot drives and nodes without a NodeClaim: delete or report.",
			oneOf(func(o *Options) *garbagecollection.Policy { return &o.OrphanPolicy }, "delete", "report")},
		{"orphan-grace-period", "ORPHAN_GRACE_PERIOD", "15m", "How long a VM or boot drive must be orphaned before it is deleted. Nodes are deleted after one minute if it is longer.",
			duration(func(o *Options) *time.Duration { return &o.OrphanGracePeriod }, time.Second)},
		{"orphan-deletion-max-fraction", "ORPHAN_DELETION_MAX_FRACTION", "0.1", "Fraction of all VMs, between 0 and 1. If more VMs than this, and more than three, are orphaned, none is deleted. If more than this, more than half, and more than three VMs of a region have to be replaced because they disappeared or stop repeatedly, none is replaced.",
			fraction(func(o *Options) *float64 { return &o.OrphanDeletionMaxFraction })},
		{"web-page-port", "WEB_PAGE_PORT", "0", "Port of the web page that shows hosts, VMs and pods to users who are allowed to get /proxmox. 0 disables it.",
			number(func(o *Options) *int { return &o.WebPagePort }, 0, 65535)},
	}
}

// DefaultOptions returns the defaults of OptionTable.
func DefaultOptions() *Options {
	o := &Options{}
	for _, option := range OptionTable() {
		if err := option.set(o, option.Default); err != nil {
			panic(fmt.Sprintf("default of %s: %v", option.Env, err))
		}
	}
	return o
}

// AddFlags registers the flags, with the environment as their default.
func (o *Options) AddFlags(fs *coreoptions.FlagSet) { o.addFlags(fs, os.Getenv) }

func (o *Options) addFlags(fs *coreoptions.FlagSet, env func(variable string) string) {
	for _, opt := range OptionTable() {
		source, value := "default", opt.Default
		if v := env(opt.Env); v != "" {
			source, value = opt.Env, v
		}
		if err := opt.set(o, value); err != nil {
			o.problems = append(o.problems, source+": "+err.Error())
		}
		if opt.Flag != "" {
			fs.Func(opt.Flag, fmt.Sprintf("%s [%s] (default %q)", opt.Help, opt.Env, opt.Default), func(v string) error { return opt.set(o, v) })
		}
	}
}

// Parse parses the flags and returns an error if a setting is invalid or contradicts
// another one.
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
		return fmt.Errorf("--cloud-config (CLOUD_CONFIG) is empty: set it to the path of the file that lists the Proxmox clusters")
	}
	if o.Pricing() == (instancetype.Pricing{}) {
		return fmt.Errorf("--price-per-vcpu, --price-per-gb, --price-per-node and --price-per-device are all 0: Karpenter could not compare nodes")
	}
	if o.ProxmoxVMIDMax <= o.ProxmoxVMID {
		return fmt.Errorf("--proxmox-vmid-max (PROXMOX_VMID_MAX) is %d: it must be above --proxmox-vmid, which is %d", o.ProxmoxVMIDMax, o.ProxmoxVMID)
	}
	if o.ProxmoxTemplateVMIDMax <= o.ProxmoxTemplateVMID {
		return fmt.Errorf("--proxmox-template-vmid-max (PROXMOX_TEMPLATE_VMID_MAX) is %d: it must be above --proxmox-template-vmid, which is %d", o.ProxmoxTemplateVMIDMax, o.ProxmoxTemplateVMID)
	}
	return nil
}

// ToContext implements Karpenter's Injectable: it returns a context with the options.
func (o *Options) ToContext(ctx context.Context) context.Context {
	return context.WithValue(ctx, optionsKey{}, o)
}
