// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/maintenance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/garbagecollection"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
)

const cloudConfig = `clusters:
  - region: home
    url: https://127.0.0.1:8006
    token_id: kubernetes@pve!karpenter
    token_secret: 11111111-2222-3333-4444-555555555555
`

// file writes a file for one test.
func file(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// clearEnv unsets the variables of all settings for one test.
func clearEnv(t *testing.T) {
	t.Helper()
	for _, option := range operator.OptionTable() {
		t.Setenv(option.Env, "")
	}
}

// settingCase is a value for one setting, the field that it sets, and invalid values with
// the expected errors.
type settingCase struct {
	value string
	want  any
	get   func(*operator.Options) any
	bad   map[string]string
}

func settingCases() map[string]settingCase {
	duration := func(get func(*operator.Options) time.Duration, tooShort string) settingCase {
		return settingCase{
			value: "7m", want: 7 * time.Minute, get: func(o *operator.Options) any { return get(o) },
			bad: map[string]string{"soon": "want a duration of at least", tooShort: "want a duration of at least"},
		}
	}
	price := func(get func(*operator.Options) float64) settingCase {
		return settingCase{
			value: "0.5", want: 0.5, get: func(o *operator.Options) any { return get(o) },
			bad: map[string]string{"cheap": "want a number from 0", "-1": "want a number from 0", "NaN": "want a number from 0", "+Inf": "want a number from 0"},
		}
	}
	vmid := map[string]string{"many": "want a whole number", "99": "from 100 to 999999999", "1.5": "want a whole number"}
	return map[string]settingCase{
		"SYSTEM_NAMESPACE": {value: "infra", want: "infra", get: func(o *operator.Options) any { return o.SystemNamespace }},
		"NODE_POLICY":      {value: "simple", want: "simple", get: func(o *operator.Options) any { return o.NodePolicy }, bad: map[string]string{"clever": "want one of simple"}},
		"VM_SIZE_POLICY": {value: "InstanceType", want: v1alpha1.VMSizeInstanceType, get: func(o *operator.Options) any { return o.VMSizePolicy },
			bad: map[string]string{"exact": "want one of Auto, Exact, InstanceType"}},
		"PROXMOX_VMID":     {value: "30000", want: 30000, get: func(o *operator.Options) any { return o.ProxmoxVMID }, bad: vmid},
		"PROXMOX_VMID_MAX": {value: "40000", want: 40000, get: func(o *operator.Options) any { return o.ProxmoxVMIDMax }, bad: vmid},
		"PROXMOX_EXCLUDED_VMIDS": {value: "9999, 30555", want: []int{9999, 30555}, get: func(o *operator.Options) any { return o.ProxmoxExcludedVMIDs },
			bad: map[string]string{"csi": "want VMIDs from 100 to 999999999", "99": "want VMIDs from 100"}},
		"VM_MEMORY_OVERHEAD_PERCENT": {value: "0.1", want: new(0.1), get: func(o *operator.Options) any { return o.VMMemoryOverheadPercent },
			bad: map[string]string{"7.5": "0.075", "-0.1": "0.075", "NaN": "0.075", "some": "0.075"}},
		"PROXMOX_TEMPLATE_VMID":     {value: "3000", want: 3000, get: func(o *operator.Options) any { return o.ProxmoxTemplateVMID }, bad: vmid},
		"PROXMOX_TEMPLATE_VMID_MAX": {value: "4000", want: 4000, get: func(o *operator.Options) any { return o.ProxmoxTemplateVMIDMax }, bad: vmid},
		"TEMPLATE_BUILDS": {value: "3", want: 3, get: func(o *operator.Options) any { return o.TemplateBuilds },
			bad: map[string]string{"0": "from 1 to 1000"}},
		"TEMPLATE_GRACE_PERIOD": duration(func(o *operator.Options) time.Duration { return o.TemplateGracePeriod }, "0s"),
		"PROXMOX_CLONE_SLOTS": {value: "9", want: 9, get: func(o *operator.Options) any { return o.ProxmoxCloneSlots },
			bad: map[string]string{"0": "from 1 to 100", "101": "from 1 to 100"}},
		"PCI_RESOURCES": {value: "gpu=nvidia.com/gpu", want: instancetype.Devices{"nvidia.com/gpu": {"gpu"}},
			get: func(o *operator.Options) any { return o.PCIResources }, bad: map[string]string{"gpu": "want <PCI mapping>=<resource>", "gpu=cpu": "want <PCI mapping>"}},
		"PRICE_PER_VCPU":   price(func(o *operator.Options) float64 { return o.PricePerVCPU }),
		"PRICE_PER_GB":     price(func(o *operator.Options) float64 { return o.PricePerGB }),
		"PRICE_PER_NODE":   price(func(o *operator.Options) float64 { return o.PricePerNode }),
		"PRICE_PER_DEVICE": price(func(o *operator.Options) float64 { return o.PricePerDevice }),
		"VOLUME_ATTACHMENT_LIMITS": {value: "a=1,b=2", want: map[string]int{"a": 1, "b": 2},
			get: func(o *operator.Options) any { return o.VolumeAttachmentLimits }, bad: map[string]string{"24": "want <CSI driver>=<number>", "a=-1": "want <CSI driver>"}},
		"HOST_DRIFT_AFTER": duration(func(o *operator.Options) time.Duration { return o.HostDriftAfter }, "-1s"),
		"HOST_MAINTENANCE_POLICY": {value: "keep", want: maintenance.PolicyKeep, get: func(o *operator.Options) any { return o.HostMaintenancePolicy },
			bad: map[string]string{"evict": "want one of drain, keep"}},
		"HOST_MAINTENANCE_TIMEOUT": duration(func(o *operator.Options) time.Duration { return o.HostMaintenanceTimeout }, "-1s"),
		"ORPHAN_POLICY": {value: "report", want: garbagecollection.PolicyReport, get: func(o *operator.Options) any { return o.OrphanPolicy },
			bad: map[string]string{"shred": "want one of delete, report"}},
		"PROXMOX_POLL_INTERVAL": duration(func(o *operator.Options) time.Duration { return o.ProxmoxPollInterval }, "50ms"),
		"PROXMOX_TASK_TIMEOUT":  duration(func(o *operator.Options) time.Duration { return o.ProxmoxTaskTimeout }, "0s"),
		"LAUNCH_RETRY_TIMEOUT":  duration(func(o *operator.Options) time.Duration { return o.LaunchRetryTimeout }, "-1m"),
		"JOIN_TOKEN_TTL":        duration(func(o *operator.Options) time.Duration { return o.JoinTokenTTL }, "59s"),
		"SHUTDOWN_TIMEOUT":      duration(func(o *operator.Options) time.Duration { return o.ShutdownTimeout }, "-1s"),
		"HOST_REMOVED_AFTER":    duration(func(o *operator.Options) time.Duration { return o.HostRemovedAfter }, "0s"),
		"MIGRATED_DRIFT_AFTER":  duration(func(o *operator.Options) time.Duration { return o.MigratedDriftAfter }, "-1s"),
		"ORPHAN_GRACE_PERIOD":   duration(func(o *operator.Options) time.Duration { return o.OrphanGracePeriod }, "0s"),
		"ORPHAN_DELETION_MAX_FRACTION": {value: "1", want: 1.0, get: func(o *operator.Options) any { return o.OrphanDeletionMaxFraction },
			bad: map[string]string{"20": "from 0 to 1", "NaN": "from 0 to 1"}},
		"WEB_PAGE_PORT": {value: "8443", want: 8443, get: func(o *operator.Options) any { return o.WebPagePort },
			bad: map[string]string{"https": "want a whole number", "65536": "from 0 to 65535"}},
		"PROXMOX_DIAL_TIMEOUT":       duration(func(o *operator.Options) time.Duration { return o.ProxmoxDialTimeout }, "0s"),
		"PROXMOX_RESPONSE_TIMEOUT":   duration(func(o *operator.Options) time.Duration { return o.ProxmoxResponseTimeout }, "0s"),
		"CLONE_SLOW_AFTER":           duration(func(o *operator.Options) time.Duration { return o.CloneSlowAfter }, "0s"),
		"CLONE_REFUSE_AFTER":         duration(func(o *operator.Options) time.Duration { return o.CloneRefuseAfter }, "0s"),
		"LAUNCH_FAILURE_BACKOFF":     duration(func(o *operator.Options) time.Duration { return o.LaunchFailureBackoff }, "0s"),
		"LAUNCH_FAILURE_BACKOFF_MAX": duration(func(o *operator.Options) time.Duration { return o.LaunchFailureBackoffMax }, "0s"),
		"STATIC_CAPACITY_TIMEOUT":    duration(func(o *operator.Options) time.Duration { return o.StaticCapacityTimeout }, "0s"),
		"OPERATION_TIMEOUT":          duration(func(o *operator.Options) time.Duration { return o.OperationTimeout }, "0s"),
		"RESTART_BACKOFF":            duration(func(o *operator.Options) time.Duration { return o.RestartBackoff }, "0s"),
		"RESTART_LIMIT": {value: "2", want: 2, get: func(o *operator.Options) any { return o.RestartLimit },
			bad: map[string]string{"0": "from 1 to 10", "11": "from 1 to 10"}},
		"REPAIR_UNREADY_TOLERATION": duration(func(o *operator.Options) time.Duration { return o.RepairUnreadyToleration }, "0s"),
		"REPAIR_REQUEST_TOLERATION": duration(func(o *operator.Options) time.Duration { return o.RepairRequestToleration }, "0s"),
		"REPAIR_DRAIN_TIMEOUT":      duration(func(o *operator.Options) time.Duration { return o.RepairDrainTimeout }, "0s"),
	}
}

// fileSettings are the settings with paths of files, which TestLoadFiles covers.
var fileSettings = map[string]bool{"CLOUD_CONFIG": true, "INSTANCE_TYPES_FILE": true, "NODE_SETTING_FILE": true}

func TestLoadSettings(t *testing.T) {
	config := file(t, "cloud.yaml", cloudConfig)
	for _, option := range operator.OptionTable() {
		if fileSettings[option.Env] {
			continue
		}
		t.Run(option.Env, func(t *testing.T) {
			g := NewWithT(t)
			c, ok := settingCases()[option.Env]
			g.Expect(ok).To(BeTrue(), "the setting has no test: add it to settingCases")
			clearEnv(t)
			t.Setenv("CLOUD_CONFIG", config)

			t.Setenv(option.Env, c.value)
			settings, err := operator.Load(nil)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(c.get(settings.Options)).To(Equal(c.want))
			for bad, message := range c.bad {
				t.Setenv(option.Env, bad)
				_, err := operator.Load(nil)
				expectLine(g, err, option.Env, bad, message)
			}
			t.Setenv(option.Env, "")
			settings, err = operator.Load(nil)
			g.Expect(err).NotTo(HaveOccurred(), "an empty variable is ignored")
			if option.Flag == "" {
				return
			}
			if option.Default != "" && option.Default != c.value {
				g.Expect(c.get(settings.Options)).NotTo(Equal(c.want), "the test's value must not be the default")
				t.Setenv(option.Env, option.Default)
			}
			settings, err = operator.Load([]string{"--" + option.Flag, c.value})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(c.get(settings.Options)).To(Equal(c.want), "a flag takes precedence over its variable")
			for bad, message := range c.bad {
				_, err := operator.Load([]string{"--" + option.Flag + "=" + bad})
				expectLine(g, err, option.Flag, bad, message)
			}
		})
	}
}

// expectLine checks that the error is one line that contains all parts.
func expectLine(g *WithT, err error, parts ...string) {
	g.Expect(err).To(HaveOccurred())
	g.Expect(err.Error()).NotTo(ContainSubstring("\n"))
	for _, part := range parts {
		g.Expect(err.Error()).To(ContainSubstring(part))
	}
}

func TestLoadDefaults(t *testing.T) {
	clearEnv(t)
	g := NewWithT(t)
	settings, err := operator.Load([]string{"--cloud-config", file(t, "cloud.yaml", cloudConfig)})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(settings.Cloud.Clusters).To(ConsistOf(HaveField("Region", "home")))
	g.Expect(settings.Options.SystemNamespace).To(Equal("kube-system"))
	g.Expect(settings.Options.ProxmoxVMID).To(Equal(20000))
	g.Expect(settings.Options.ProxmoxVMIDMax).To(Equal(99999))
	defaults := operator.DefaultOptions()
	defaults.CloudConfig = settings.Options.CloudConfig
	g.Expect(settings.Options).To(Equal(defaults), "without flags and variables the defaults of the table apply")
	seen := map[string]bool{}
	for _, option := range operator.OptionTable() {
		g.Expect(option.Help).To(HaveSuffix("."), option.Env)
		g.Expect(seen[option.Env] || seen[option.Flag] && option.Flag != "").To(BeFalse(), option.Env+" is listed twice")
		seen[option.Env], seen[option.Flag] = true, true
		g.Expect(option.Flag == "" || strings.ToUpper(strings.ReplaceAll(option.Flag, "-", "_")) == option.Env).To(BeTrue(), option.Env)
	}
}

// A setting has the same name in the table and in Options.
func TestOptionTableNamesFields(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	fields := map[string]bool{}
	for field := range reflect.TypeFor[operator.Options]().Fields() {
		if field.IsExported() {
			fields[strings.ToUpper(field.Name)] = true
		}
	}
	for _, option := range operator.OptionTable() {
		name := strings.ReplaceAll(option.Env, "_", "")
		g.Expect(fields).To(HaveKey(name), option.Env)
		delete(fields, name)
	}
	g.Expect(fields).To(BeEmpty(), "every field of Options is a setting")
}

// No VM and no template gets the VMID of the Proxmox CSI driver's volumes.
func TestVMIDsExcludeCSI(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	g.Expect(operator.DefaultOptions().InstanceSettings().VMIDs.Exclude).To(ConsistOf(9999))
	g.Expect(operator.DefaultOptions().TemplateSettings().VMIDs.Exclude).To(ConsistOf(9999))
	options := &operator.Options{ProxmoxExcludedVMIDs: []int{30555}}
	g.Expect(options.InstanceSettings().VMIDs.Exclude).To(ConsistOf(30555))
	g.Expect(options.TemplateSettings().VMIDs.Exclude).To(ConsistOf(30555))
}

// Fewer, larger nodes are cheaper than more, smaller ones.
func TestDefaultPricing(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	prices, catalog := operator.DefaultOptions().Pricing(), instancetype.DefaultCatalog()
	small, ok := catalog.Get("s1.2VCPU-8GB")
	g.Expect(ok).To(BeTrue())
	large, ok := catalog.Get("s1.4VCPU-16GB")
	g.Expect(ok).To(BeTrue())
	g.Expect(2 * prices.Price(small, 0)).To(BeNumerically(">", prices.Price(large, 0)))
}

func TestVersion(t *testing.T) {
	t.Parallel()
	NewWithT(t).Expect(operator.Version()).To(MatchRegexp(`^karpenter-provider-proxmox \S+ \(Karpenter \S+, go1\.\S+\)$`))
}

func TestLoadInvalidSettings(t *testing.T) {
	config := file(t, "cloud.yaml", cloudConfig)
	for name, c := range map[string]struct {
		args []string
		env  map[string]string
		want []string
	}{
		"no_cloud_config":           {want: []string{"--cloud-config", "CLOUD_CONFIG", "is empty"}},
		"template_VMIDs_reversed":   {args: []string{"--cloud-config", config, "--proxmox-template-vmid", "5000", "--proxmox-template-vmid-max", "4000"}, want: []string{"PROXMOX_TEMPLATE_VMID_MAX", "4000", "5000"}},
		"VMIDs_reversed":            {args: []string{"--cloud-config", config, "--proxmox-vmid", "5000", "--proxmox-vmid-max", "4000"}, want: []string{"PROXMOX_VMID_MAX", "4000", "5000"}},
		"clone_refused_before_slow": {args: []string{"--cloud-config", config, "--clone-refuse-after", "3m"}, want: []string{"CLONE_REFUSE_AFTER", "3m0s", "5m0s"}},
		"max_backoff_below_initial": {args: []string{"--cloud-config", config, "--launch-failure-backoff-max", "1m"}, want: []string{"LAUNCH_FAILURE_BACKOFF_MAX", "1m0s", "3m0s"}},
		"capacity_timeout_too_long": {args: []string{"--cloud-config", config, "--static-capacity-timeout", "10m1s"}, want: []string{"--static-capacity-timeout", "STATIC_CAPACITY_TIMEOUT", "10m1s", "must not be above 10m", "15m"}},
		"unknown_flag":              {args: []string{"--cloud-config", config, "--no-such-flag"}, want: []string{"no-such-flag", "--help"}},
		"extra_argument":            {args: []string{"--cloud-config", config, "start"}, want: []string{`"start"`, "--help"}},
		"flags_after_argument":      {args: []string{"start", "--cloud-config", config}, want: []string{`"start"`, "--help"}},
		"two_invalid_variables":     {args: []string{"--cloud-config", config}, env: map[string]string{"PROXMOX_VMID": "x", "ORPHAN_GRACE_PERIOD": "y"}, want: []string{"PROXMOX_VMID", "ORPHAN_GRACE_PERIOD"}},
		"invalid_feature_gate":      {args: []string{"--cloud-config", config, "--feature-gates", "NodeRepair=maybe"}, want: []string{"NodeRepair"}},
	} {
		t.Run(name, func(t *testing.T) {
			clearEnv(t)
			for key, value := range c.env {
				t.Setenv(key, value)
			}
			_, err := operator.Load(c.args)
			expectLine(NewWithT(t), err, c.want...)
		})
	}
}

func TestLoadFiles(t *testing.T) {
	good := file(t, "cloud.yaml", cloudConfig)
	types := file(t, "types.json", `[{"name": "big", "capacity": {"cpu": "4", "memory": "8Gi"}}]`)
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"cloud_config_missing":        {[]string{"--cloud-config", "/nowhere/cloud.yaml"}, []string{"/nowhere/cloud.yaml", "does not exist"}},
		"cloud_config_invalid":        {[]string{"--cloud-config", file(t, "cloud.yaml", strings.Replace(cloudConfig, "url:", "uri:", 1))}, []string{"clusters[0].uri", "unknown field"}},
		"node_settings_missing":       {[]string{"--cloud-config", good, "--node-setting-file", "/nowhere/hosts.json"}, []string{"/nowhere/hosts.json"}},
		"node_settings_invalid":       {[]string{"--cloud-config", good, "--node-setting-file", file(t, "hosts.json", "{")}, []string{"hosts.json"}},
		"instance_types_missing":      {[]string{"--cloud-config", good, "--instance-types-file", "/nowhere/types.json"}, []string{"/nowhere/types.json"}},
		"instance_types_not_a_list":   {[]string{"--cloud-config", good, "--instance-types-file", file(t, "types.json", `{"name": 7}`)}, []string{"types.json"}},
		"instance_types_without_name": {[]string{"--cloud-config", good, "--instance-types-file", file(t, "types.json", `[{}]`)}, []string{"types.json", "name"}},
	} {
		t.Run(name, func(t *testing.T) {
			clearEnv(t)
			_, err := operator.Load(c.args)
			expectLine(NewWithT(t), err, c.want...)
			NewWithT(t).Expect(err.Error()).NotTo(ContainSubstring("11111111-2222"), "the error must not contain the secret")
		})
	}
	t.Run("custom_catalog_replaces_built_in", func(t *testing.T) {
		clearEnv(t)
		g := NewWithT(t)
		t.Setenv("CLOUD_CONFIG", good)
		t.Setenv("INSTANCE_TYPES_FILE", types)
		settings, err := operator.Load(nil)
		g.Expect(err).NotTo(HaveOccurred())
		_, ok := settings.Catalog.Get("big")
		g.Expect(ok).To(BeTrue())
		g.Expect(settings.Catalog.Types()).NotTo(ContainElement(HaveField("Name", "t1.2VCPU-6GB")))
		g.Expect(settings.InstanceTypes(nil, nil).VMSizePolicy).To(Equal(v1alpha1.VMSizeInstanceType))
	})
}
