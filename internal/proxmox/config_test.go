// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const (
	token        = "  token_id: kubernetes@pve!karpenter\n  token_secret: s3cr3t\n"
	cluster      = "- region: dc1\n  url: https://pve1:8006\n"
	hexPrint     = "AB:CD:EF:01:23:45:67:89:AB:CD:EF:01:23:45:67:89:AB:CD:EF:01:23:45:67:89:AB:CD:EF:01:23:45:67:89"
	goodClusters = "clusters:\n" + cluster + token
)

// load writes a cloud config, with DIR replaced by its directory, and reads it.
func load(t *testing.T, text string, files map[string]string) (proxmox.Config, error) {
	t.Helper()
	dir := t.TempDir()
	files["cloud.yaml"] = strings.ReplaceAll(text, "DIR", dir)
	for name, content := range files {
		NewWithT(t).Expect(os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600)).To(Succeed())
	}
	return proxmox.LoadConfig(filepath.Join(dir, "cloud.yaml"))
}

func TestLoadConfig(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		ca := newFakeHost(t, always(data(version))).ca()
		found, err := load(t, `
features:
  provider: capmox
clusters:
- region: dc1
  url: https://pve1:8006/api2/json
  insecure: true
  token_id: kubernetes@pve!karpenter
  token_secret: s3cr3t
- region: dc-2.b
  url: https://10.0.0.1:8006
  urls: [ "https://10.0.0.1:8006/", https://10.0.0.2:8006, "https://[2001:db8::1]:8006" ]
  ca_file: DIR/ca.pem
  token_id_file: DIR/id
  token_secret_file: DIR/secret
- region: dc3
  urls: [https://pve.example.com/proxy/api2/json]
  fingerprint: `+hexPrint+`
  username: root@pam
  password: 12345
`, map[string]string{"ca.pem": ca, "id": "kubernetes@pve!karpenter\n", "secret": "s3cr3t\n"})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found.Features.Provider).To(Equal("capmox"))
		g.Expect(found.Clusters).To(HaveLen(3))
		one, two, three := found.Clusters[0], found.Clusters[1], found.Clusters[2]
		g.Expect(one).To(Equal(proxmox.ClusterConfig{
			Region: "dc1", URLs: []string{"https://pve1:8006/api2/json"}, Insecure: true, TokenID: "kubernetes@pve!karpenter", TokenSecret: "s3cr3t",
		}))
		g.Expect(two.URLs).To(Equal([]string{
			"https://10.0.0.1:8006/api2/json", "https://10.0.0.2:8006/api2/json", "https://[2001:db8::1]:8006/api2/json",
		}))
		g.Expect(two.CA).To(Equal(ca))
		g.Expect(two.TokenSecretFile).To(HaveSuffix("/secret"))
		g.Expect(three.URLs).To(Equal([]string{"https://pve.example.com/proxy/api2/json"}))
		g.Expect(three.Fingerprints).To(Equal([]string{hexPrint}))
		g.Expect(three.Password).To(Equal(proxmox.Secret("12345")))
		for _, c := range found.Clusters {
			g.Expect(proxmox.New(c, proxmox.Options{})).Error().NotTo(HaveOccurred())
		}
	})
}

// Each error is one line with line, field, value found and values allowed, and without
// secrets.
func TestLoadConfigErrors(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ text, want string }{
		"empty":             {"", `the file is empty: want "clusters:" with at least one cluster`},
		"only_a_comment":    {"# nothing\n", `the file is empty`},
		"bad_YAML":          {"clusters:\n  - a: [\n", "bad YAML: line "},
		"list":              {"- a\n", "line 1: found a list, want fields: clusters, features"},
		"unknown_field":     {goodClusters + "featuers: {}\n", "line 6: featuers: unknown field, known fields: clusters, features"},
		"unknown_feature":   {"features: {x: 1}\n" + goodClusters, "line 1: features.x: unknown field, known fields: provider"},
		"unknown_provider":  {"features: {provider: aws}\n" + goodClusters, `line 1: features.provider: found "aws", want default or capmox`},
		"no_clusters":       {"features: {provider: default}\n", "clusters: found none, want at least one cluster with region, url and a token"},
		"empty_clusters":    {"clusters: []\n", "clusters: found none"},
		"clusters_no_list":  {"clusters: {a: b}\n", "line 1: clusters: found fields, want a list"},
		"cluster_no_fields": {"clusters: [s3cr3t]\n", "line 1: clusters[0]: found a text, want fields: ca, ca_file"},
		"unknown_key": {
			goodClusters + "- region: dc2\n  uri: https://pve2:8006\n",
			"line 7: clusters[1].uri: unknown field, known fields: ca, ca_file, fingerprint, insecure, password, proxy_url, region, root, token_id, token_id_file, token_secret, token_secret_file, url, urls, username",
		},
		"key_twice":       {goodClusters + "  region: dc2\n", "line 6: clusters[0].region: found twice, want one"},
		"secret_no_text":  {"clusters:\n" + cluster + "  token_id: a@pve!b\n  token_secret: [s3cr3t]\n", "line 5: clusters[0].token_secret: found a list, want a text"},
		"insecure_no":     {goodClusters + "  insecure: nope\n", "line 6: clusters[0].insecure: found a text, want true or false"},
		"no_region":       {"clusters:\n- url: https://pve1:8006\n" + token, "line 2: clusters[0].region: missing: want a name for the cluster, the value of the label topology.kubernetes.io/region"},
		"bad_region":      {"clusters:\n- region: dc/1\n  url: https://pve1:8006\n" + token, `line 2: clusters[0].region: found "dc/1", want a label value: at most 63`},
		"region_twice":    {goodClusters + cluster + token, `clusters[1].region: found "dc1", which is also the region of clusters[0]: a region is one cluster; list all hosts of one cluster in its urls`},
		"no_url":          {"clusters:\n- region: dc1\n" + token, "line 2: clusters[0].url: missing: want https://host:8006, or urls"},
		"plain_http":      {"clusters:\n- region: dc1\n  url: http://pve1:8006\n" + token, `clusters[0].url: found "http://pve1:8006", want https://host:8006: Proxmox VE supports TLS only`},
		"no_scheme":       {"clusters:\n- region: dc1\n  url: pve1:8006\n" + token, `line 3: clusters[0].url: found "pve1:8006", want https://host:8006`},
		"no_host":         {"clusters:\n- region: dc1\n  url: https://\n" + token, `clusters[0].url: found "https://", want https://host:8006`},
		"second_url":      {"clusters:\n" + cluster + "  urls: [https://pve2:8006/foo]\n" + token, `line 4: clusters[0].urls[1]: found "https://pve2:8006/foo", want https://host:8006 or https://host:8006/api2/json`},
		"one_of_urls":     {"clusters:\n- region: dc1\n  urls: [pve1]\n" + token, `line 3: clusters[0].url: found "pve1", want https://host:8006`},
		"query":           {"clusters:\n- region: dc1\n  url: https://pve1:8006/?a=b\n" + token, `without query and fragment`},
		"password_in_url": {"clusters:\n- region: dc1\n  url: https://root:s3cr3t@pve1:8006\n" + token, "clusters[0].url: found a value that is not a plain URL, want https://host:8006 without user and password"},
		"no_credentials":  {"clusters:\n" + cluster, "line 2: clusters[0].token_id: missing: set token_id and token_secret (or token_id_file and token_secret_file), or username and password"},
		"both_kinds":      {goodClusters + "  username: root@pam\n  password: s3cr3t\n", "clusters[0].token_id: found a token and a username or password: set one of them, preferably the token"},
		"id_alone":        {"clusters:\n" + cluster + "  token_id: a@pve!b\n", "clusters[0].token_secret: missing, but token_id is set"},
		"secret_alone":    {"clusters:\n" + cluster + "  token_secret: s3cr3t\n", "clusters[0].token_id: missing, but the secret is set: want user@realm!name"},
		"bad_token_id":    {"clusters:\n" + cluster + "  token_id: karpenter\n  token_secret: s3cr3t\n", `line 4: clusters[0].token_id: found "karpenter", want user@realm!name, for instance kubernetes@pve!karpenter`},
		"id_with_secret":  {"clusters:\n" + cluster + "  token_id: a@pve!b=s3cr3t\n  token_secret: s3cr3t\n", `clusters[0].token_id: found "=" in it, want only user@realm!name`},
		"secret_twice":    {goodClusters + "  token_secret_file: DIR/secret\n", "clusters[0].token_secret_file: found together with token_secret: set one of them"},
		"id_twice":        {goodClusters + "  token_id_file: DIR/secret\n", "clusters[0].token_id_file: found together with token_id: set one of them"},
		"no_secret_file":  {"clusters:\n" + cluster + "  token_id: a@pve!b\n  token_secret_file: DIR/none\n", "none: no such file or directory: mount the file with the token's secret"},
		"empty_secret":    {"clusters:\n" + cluster + "  token_id: a@pve!b\n  token_secret_file: DIR/empty\n", "clusters[0].token_secret_file: "},
		"bad_id_file":     {"clusters:\n" + cluster + "  token_id_file: DIR/other\n  token_secret_file: DIR/secret\n", `clusters[0].token_id_file: found "karpenter", want user@realm!name`},
		"no_id_file":      {"clusters:\n" + cluster + "  token_id_file: DIR/none\n  token_secret_file: DIR/secret\n", "none: no such file or directory: mount the file with the token's ID"},
		"user_alone":      {"clusters:\n" + cluster + "  username: root@pam\n", "clusters[0].password: missing, but username is set"},
		"password_alone":  {"clusters:\n" + cluster + "  password: s3cr3t\n", "clusters[0].username: missing, but password is set: want user@realm"},
		"user_no_realm":   {"clusters:\n" + cluster + "  username: root\n  password: s3cr3t\n", `line 4: clusters[0].username: found "root", want user@realm, for instance root@pam`},
		"other_root":      {goodClusters + "  root: {username: admin@pve, password: s3cr3t}\n", `clusters[0].root.username: found "admin@pve", want root@pam: no other user, and no token, may set affinity, hugepages and args`},
		"root_alone":      {goodClusters + "  root: {username: root@pam}\n", "clusters[0].root.password_file: missing: want the file with root's password, or password"},
		"root_twice":      {goodClusters + "  root: {password: s3cr3t, password_file: DIR/secret}\n", "clusters[0].root.password_file: found together with root.password: set one of them"},
		"no_root_file":    {goodClusters + "  root: {password_file: DIR/none}\n", "none: no such file or directory: mount the file with root's password"},
		"unknown_in_root": {goodClusters + "  root: {pasword: s3cr3t}\n", "clusters[0].root.pasword: unknown field, known fields: password, password_file, username"},
		"proxy_scheme":    {goodClusters + "  proxy_url: ftp://proxy:21\n", `clusters[0].proxy_url: found "ftp://proxy:21", want http, https, socks5, socks5h with host and port`},
		"proxy_path":      {goodClusters + "  proxy_url: http://proxy:3128/x\n", `clusters[0].proxy_url: found "http://proxy:3128/x", want http`},
		"proxy_password":  {goodClusters + "  proxy_url: ftp://user:s3cr3t@proxy:21\n", "clusters[0].proxy_url: found a value that is not the URL of a proxy, want http"},
		"bad_fingerprint": {goodClusters + "  fingerprint: AB:CD\n", `clusters[0].fingerprint: found "AB:CD", want a SHA-256 fingerprint`},
		"bad_ca":          {goodClusters + "  ca: nonsense\n", "line 6: clusters[0].ca: found no certificate, want PEM"},
		"no_ca_file":      {goodClusters + "  ca_file: DIR/none\n", "none: no such file or directory: mount the file, for instance /etc/pve/pve-root-ca.pem"},
		"empty_ca_file":   {goodClusters + "  ca_file: DIR/empty\n", "clusters[0].ca_file: found no certificate in /"},
		"two_cas":         {goodClusters + "  ca: x\n  ca_file: DIR/secret\n", "clusters[0].ca_file: found together with ca: set one of them"},
		"ca_and_pin":      {goodClusters + "  ca: x\n  fingerprint: " + hexPrint + "\n", "clusters[0].fingerprint: found together with ca or ca_file: set one of them"},
		"insecure_and_ca": {goodClusters + "  ca: x\n  insecure: true\n", "clusters[0].insecure: found true together with ca, ca_file or fingerprint: remove one"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			_, err := load(t, test.text, map[string]string{"secret": "s3cr3t\n", "empty": " \n", "other": "karpenter\n"})
			g.Expect(err).To(HaveOccurred())
			g.Expect(err.Error()).To(ContainSubstring(test.want))
			g.Expect(err.Error()).To(And(HavePrefix("reading the cloud config /"), ContainSubstring("/cloud.yaml: ")))
			g.Expect(err.Error()).NotTo(Or(ContainSubstring("s3cr3t"), ContainSubstring("\n")))
		})
	}
}

func TestLoadConfigMissingFile(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	g.Expect(proxmox.LoadConfig("")).Error().To(MatchError(ContainSubstring("set --cloud-config or CLOUD_CONFIG")))
	_, err := proxmox.LoadConfig("/nowhere/cloud.yaml")
	g.Expect(err).To(MatchError("reading the cloud config: /nowhere/cloud.yaml does not exist: check --cloud-config and the mounted secret"))
	g.Expect(proxmox.LoadConfig(t.TempDir())).Error().To(MatchError(ContainSubstring("is a directory")))
}

func FuzzLoadConfig(f *testing.F) {
	f.Add(goodClusters)
	f.Add("clusters: &a [*a]\n")
	f.Add("clusters:\n- <<: {region: x}\n")
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(t.TempDir(), "cloud.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Skip(err)
		}
		found, err := proxmox.LoadConfig(path)
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("more than one line: %q", err)
		}
		if err == nil && len(found.Clusters) == 0 {
			t.Error("no clusters and no error")
		}
	})
}
