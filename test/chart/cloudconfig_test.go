// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const (
	withToken   = "token_id: 'kubernetes@pve!karpenter', token_secret: s3cr3t"
	oneCluster  = "region: a, url: 'https://a:8006', " + withToken
	fingerprint = "AB:CD:EF:01:23:45:67:89:AB:CD:EF:01:23:45:67:89:AB:CD:EF:01:23:45:67:89:AB:CD:EF:01:23:45:67:89"
)

// TestCloudConfig checks that the chart accepts the clusters that the controller accepts, and
// rejects those that the controller rejects at its start.
func TestCloudConfig(t *testing.T) {
	t.Parallel()
	at := func(field string) string { return "at '/config/clusters/INDEX" + field + "': " }
	var accepted, rejected, messages []string
	for name, c := range map[string]struct {
		cluster string
		// chart and code are parts of the errors; "" accepts the cluster.
		chart, code string
	}{
		"token":                     {oneCluster, "", ""},
		"URL_with_path":             {"region: a, url: 'https://a:8006/api2/json/', " + withToken, "", ""},
		"URL_behind_proxy":          {"region: a, url: 'https://a/pve/api2/json', " + withToken, "", ""},
		"IPv6":                      {"region: a, url: 'https://[2001:db8::1]:8006', " + withToken, "", ""},
		"several_URLs":              {"region: a, urls: ['https://a:8006', 'https://b:8006'], " + withToken, "", ""},
		"URL_and_URLs":              {oneCluster + ", urls: ['https://b:8006']", "", ""},
		"proxy":                     {oneCluster + ", proxy_url: 'http://proxy:3128'", "", ""},
		"proxy_with_password":       {oneCluster + ", proxy_url: 'socks5h://user:password@proxy:1080'", "", ""},
		"insecure":                  {oneCluster + ", insecure: true", "", ""},
		"not_insecure_with_pin":     {oneCluster + ", insecure: false, fingerprint: '" + fingerprint + "'", "", ""},
		"two_fingerprints":          {oneCluster + ", fingerprint: '" + fingerprint + ", " + strings.ReplaceAll(strings.ToLower(fingerprint), ":", "") + "'", "", ""},
		"login":                     {"region: a, url: 'https://a:8006', username: root@pam, password: s3cr3t", "", ""},
		"root":                      {oneCluster + ", root: {password: s3cr3t}", "", ""},
		"root_with_name":            {oneCluster + ", root: {username: root@pam, password: s3cr3t}", "", ""},
		"empty_fields":              {oneCluster + ", ca: '', ca_file: , fingerprint: '', username: '', password: , urls: [], token_id_file: '', root: ", "", ""},
		"not_a_cluster":             {"", at("") + "got null, want object", "found a text, want fields"},
		"unknown_field":             {"region: a, url: 'https://a', token_id: a@pve!b, token_secert: c", at("") + "additional properties 'token_secert' not allowed", "clusters[0].token_secert: unknown field"},
		"no_region":                 {"url: 'https://a:8006', " + withToken, at("") + "missing property 'region'", "region: missing"},
		"empty_region":              {"region: '', url: 'https://a:8006', " + withToken, at("/region") + "'' does not match pattern", "region: missing"},
		"bad_region":                {"region: a/b, url: 'https://a:8006', " + withToken, at("/region") + "'a/b' does not match pattern", `region: found "a/b"`},
		"no_URL":                    {"region: a, " + withToken, at("") + "missing property 'url'", "url: missing"},
		"empty_URLs":                {"region: a, urls: [], " + withToken, at("") + "missing property 'url'", "url: missing"},
		"empty_item_of_URLs":        {"region: a, urls: [''], " + withToken, at("/urls/0") + "'' does not match pattern", "url: found"},
		"plain_HTTP":                {"region: a, url: 'http://a:8006', " + withToken, at("/url") + "'http://a:8006' does not match pattern '^\\\\s*(https://", "Proxmox VE supports TLS only"},
		"URL_without_scheme":        {"region: a, url: 'a:8006', " + withToken, at("/url") + "'a:8006' does not match pattern", "url: found"},
		"URL_without_host":          {"region: a, url: 'https://', " + withToken, at("/url") + "'https://' does not match pattern", "url: found"},
		"other_path":                {"region: a, url: 'https://a:8006/foo', " + withToken, at("/url") + "'https://a:8006/foo' does not match pattern", "url: found"},
		"query":                     {"region: a, url: 'https://a:8006/?b=c', " + withToken, at("/url") + "'https://a:8006/?b=c' does not match pattern", "without query"},
		"password_in_URL":           {"region: a, url: 'https://root:s3cr3t@a:8006', " + withToken, at("/url") + "value must be 'https://host:8006 without user and password'", "without user and password"},
		"no_credentials":            {"region: a, url: 'https://a:8006'", at("") + "missing property 'token_id'", "token_id: missing"},
		"no_secret":                 {"region: a, url: 'https://a:8006', token_id: a@pve!b", at("") + "missing property 'token_secret'", "token_secret: missing"},
		"empty_secret":              {"region: a, url: 'https://a:8006', token_id: a@pve!b, token_secret: ''", at("/token_secret") + "'' does not match pattern", "token_secret: missing"},
		"no_token_ID":               {"region: a, url: 'https://a:8006', token_secret: s3cr3t", at("") + "missing property 'token_id'", "token_id: missing"},
		"bad_token_ID":              {"region: a, url: 'https://a:8006', token_id: karpenter, token_secret: s3cr3t", at("/token_id") + "'karpenter' does not match pattern", `token_id: found "karpenter"`},
		"secret_in_token_ID":        {"region: a, url: 'https://a:8006', token_id: a@pve!b=s3cr3t, token_secret: s3cr3t", at("/token_id") + "value must be 'user@realm!name without the secret'", `token_id: found "="`},
		"secret_twice":              {oneCluster + ", token_secret_file: /secret", at("/token_secret_file") + "value must be 'unset, because token_secret is set'", "token_secret_file: found together"},
		"token_ID_twice":            {oneCluster + ", token_id_file: /id", at("/token_id_file") + "value must be 'unset, because token_id is set'", "token_id_file: found together"},
		"token_and_login":           {oneCluster + ", username: root@pam, password: s3cr3t", at("/token_id") + "value must be 'unset, because a username or password is set'", "found a token and a username"},
		"user_without_password":     {"region: a, url: 'https://a:8006', username: root@pam", at("") + "missing property 'password'", "password: missing"},
		"password_without_user":     {"region: a, url: 'https://a:8006', password: s3cr3t", at("") + "missing property 'username'", "username: missing"},
		"user_without_realm":        {"region: a, url: 'https://a:8006', username: root, password: s3cr3t", at("/username") + "'root' does not match pattern", `username: found "root"`},
		"other_root":                {oneCluster + ", root: {username: admin@pve, password: s3cr3t}", at("/root/username") + "value must be one of 'root@pam', <nil>", "root.username: found"},
		"root_without_password":     {oneCluster + ", root: {username: root@pam}", at("/root") + "missing property 'password'", "root.password_file: missing"},
		"root_password_twice":       {oneCluster + ", root: {password: s3cr3t, password_file: /p}", at("/root/password_file") + "value must be 'unset, because password is set'", "root.password_file: found together"},
		"unknown_field_of_root":     {oneCluster + ", root: {pasword: s3cr3t}", at("/root") + "additional properties 'pasword' not allowed", "root.pasword: unknown field"},
		"bad_proxy":                 {oneCluster + ", proxy_url: 'ftp://proxy:21'", at("/proxy_url") + "'ftp://proxy:21' does not match pattern", `proxy_url: found "ftp://proxy:21"`},
		"bad_fingerprint":           {oneCluster + ", fingerprint: 'AB:CD'", at("/fingerprint") + "'AB:CD' does not match pattern", `fingerprint: found "AB:CD"`},
		"CA_without_certificate":    {oneCluster + ", ca: nonsense", at("/ca") + "'nonsense' does not match pattern", "ca: found no certificate"},
		"CA_and_fingerprint":        {oneCluster + ", ca: '-----BEGIN CERTIFICATE-----', fingerprint: '" + fingerprint + "'", at("/fingerprint") + "value must be 'unset, because ca is set'", "fingerprint: found together with ca"},
		"CA_twice":                  {oneCluster + ", ca: '-----BEGIN CERTIFICATE-----', ca_file: /ca.pem", at("/ca_file") + "value must be 'unset, because ca is set'", "ca_file: found together with ca"},
		"insecure_with_fingerprint": {oneCluster + ", insecure: true, fingerprint: '" + fingerprint + "'", at("/fingerprint") + "value must be 'unset, because insecure is set'", "insecure: found true together"},
		"insecure_as_text":          {oneCluster + ", insecure: sometimes", at("/insecure") + "got string, want null or boolean", "insecure: found a text"},
	} {
		cluster := "{" + c.cluster + "}"
		if c.cluster == "" {
			cluster = "null"
		}
		switch _, err := proxmox.ParseConfig([]byte("clusters: [" + cluster + "]")); {
		case c.code == "" && err != nil:
			t.Errorf("%s: the controller reports %v, want no error", name, err)
		case c.code != "" && (err == nil || !strings.Contains(err.Error(), c.code) || strings.Contains(err.Error(), "s3cr3t")):
			t.Errorf("%s: the controller reports %v, want %q without secrets", name, err, c.code)
		}
		if c.chart == "" {
			accepted = append(accepted, cluster)
			continue
		}
		messages = append(messages, strings.Replace(c.chart, "INDEX", fmt.Sprint(len(rejected)), 1))
		rejected = append(rejected, cluster)
	}
	// Helm reports the errors of all clusters.
	render(t, "config: {clusters: ["+strings.Join(accepted, ", ")+"]}")
	found := reject(t, "config: {clusters: ["+strings.Join(rejected, ", ")+"]}")
	for n, want := range messages {
		expect(t, strings.Contains(found, want), "%s: the chart does not report %q", rejected[n], want)
	}
	expect(t, !strings.Contains(found, "s3cr3t"), "the chart reports a secret:\n%s", found)
}

// TestCloudConfigStricter lists what the chart checks differently from the controller.
func TestCloudConfigStricter(t *testing.T) {
	t.Parallel()
	// Helm would store 0123 as 83.
	found := reject(t, "config: {clusters: [{region: a, url: 'https://a:8006', username: root@pam, password: 0123}]}")
	want := "/password': got number, want null or string"
	expect(t, strings.Contains(found, want), "found %s, want %q", found, want)
	// The files are in the container, not where Helm runs.
	render(t, "config: {clusters: [{region: a, url: 'https://a:8006', token_id_file: /id, token_secret_file: /secret, ca_file: /ca}]}")
	// The Secret has the clusters.
	render(t, "existingConfigSecret: mine\nconfig: {clusters: [{region: a, url: 'https://a:8006'}]}")
}

// TestCloudConfigFields checks that the schema has the fields that the controller knows.
func TestCloudConfigFields(t *testing.T) {
	t.Parallel()
	known := func(content string) []string {
		t.Helper()
		_, err := proxmox.ParseConfig([]byte(content))
		fields := regexp.MustCompile(`known fields: (.*)`).FindStringSubmatch(fmt.Sprint(err))
		if fields == nil {
			t.Fatalf("%s: found %v, want the known fields", content, err)
		}
		return strings.Split(fields[1], ", ")
	}
	type fields struct{ Properties map[string]fields }
	var schema struct {
		Properties  struct{ Config fields }
		Definitions struct{ ClusterFields fields }
	}
	content, err := os.ReadFile(chartDir + "/values.schema.json")
	check(t, err)
	check(t, json.Unmarshal(content, &schema))
	cluster := schema.Definitions.ClusterFields.Properties
	for where, c := range map[string]struct {
		found map[string]fields
		want  []string
	}{
		"config":   {schema.Properties.Config.Properties, known("x: y")},
		"features": {schema.Properties.Config.Properties["features"].Properties, known("features: {x: y}")},
		"cluster":  {cluster, known("clusters: [{x: y}]")},
		"root":     {cluster["root"].Properties, known("clusters: [{root: {x: y}}]")},
	} {
		found := slices.Sorted(maps.Keys(c.found))
		expect(t, slices.Equal(found, c.want), "%s: the schema has the fields %q, the controller %q", where, found, c.want)
	}
}

// TestCloudConfigSecret checks that the controller can read the Secret that the chart creates.
func TestCloudConfigSecret(t *testing.T) {
	t.Parallel()
	rendered := render(t, "config: {features: {provider: capmox}, clusters: [{"+oneCluster+"}]}")
	config, err := proxmox.ParseConfig([]byte(rendered.read(t, "Secret", `{.stringData.config\.yaml}`)))
	check(t, err)
	want, err := proxmox.ParseConfig([]byte("features: {provider: capmox}\nclusters: [{" + oneCluster + "}]"))
	check(t, err)
	expect(t, reflect.DeepEqual(config, want), "found %+v, want %+v", config, want)
}
