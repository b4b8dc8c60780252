// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

// object is a JSON object.
type object = map[string]any

// clusterFields returns the schema of an entry of config.clusters: the fields that the
// controller knows (internal/proxmox, ParseConfig), and their formats. Text must be
// quoted where YAML reads a number, because Helm would change 0123.
func clusterFields() object {
	const fingerprint = `([0-9A-Fa-f]{2}:?){32}`
	text := object{"type": []string{"string", "null"}}
	cluster := fields(object{
		"region":            formatted(`[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?`),
		"url":               urlFormat(),
		"urls":              object{"type": []string{"array", "null"}, "items": object{"allOf": []object{urlFormat(), nonEmpty()}}},
		"insecure":          object{"type": []string{"boolean", "null"}},
		"ca":                formatted(`[^-]*-----BEGIN CERTIFICATE-----[\s\S]*`),
		"ca_file":           text,
		"fingerprint":       formatted(fingerprint + `([ ,;]+` + fingerprint + `)*`),
		"proxy_url":         proxyFormat(),
		"token_id":          tokenFormat(),
		"token_secret":      text,
		"token_id_file":     text,
		"token_secret_file": text,
		"username":          formatted(`[^\s:/@!]+@[A-Za-z][A-Za-z0-9._-]*`),
		"password":          text,
		"root": fields(object{
			"username":      object{"enum": []any{"root@pam", nil}},
			"password":      text,
			"password_file": text,
		}),
	})
	cluster["type"] = "object"
	return cluster
}

// clusterRules returns the schema of the fields that an entry of config.clusters must
// have, and of those that exclude each other.
func clusterRules() object {
	login := object{"anyOf": []object{isSet("username"), isSet("password")}}
	rules := []object{
		isSet("region"),
		{"if": object{"required": []string{"urls"}, "properties": object{"urls": object{"type": "array", "minItems": 1}}}, "else": isSet("url")},
		{
			"if": login,
			"then": object{"allOf": []object{
				isSet("username"), isSet("password"),
				exclude(login, "a username or password", "token_id", "token_secret", "token_id_file", "token_secret_file"),
			}},
			"else": object{"allOf": append(exactlyOne("token_id", "token_id_file"), exactlyOne("token_secret", "token_secret_file")...)},
		},
		exclude(isTrue("insecure"), "insecure", "ca", "ca_file", "fingerprint"),
		exclude(isSet("ca"), "ca", "ca_file", "fingerprint"),
		exclude(isSet("ca_file"), "ca_file", "fingerprint"),
	}
	root := object{"if": object{"type": "object"}, "then": object{"allOf": exactlyOne("password", "password_file")}}
	return object{"allOf": rules, "properties": object{"root": root}}
}

func fields(properties object) object {
	return object{"type": []string{"object", "null"}, "additionalProperties": false, "properties": properties}
}

// formatted returns the schema of text that is empty or matches a pattern, with spaces
// around it.
func formatted(pattern string) object {
	return object{"type": []string{"string", "null"}, "pattern": `^\s*(` + pattern + `)?\s*$`}
}

// urlFormat and tokenFormat do not match text that contains a secret with a pattern,
// because Helm prints text that does not match.
func urlFormat() object {
	format := formatted(`https://[^/?#\s]+(/*|/([^?#\s]*/)?api2/json/*)`)
	return object{"if": object{"type": "string", "pattern": "@"}, "then": object{"const": "https://host:8006 without user and password"}, "else": format}
}

// proxyFormat does not check a URL with a user, because it may contain a password.
func proxyFormat() object {
	format := formatted(`(https?|socks5h?)://[^/?#\s]+/?`)
	return object{"if": object{"type": "string", "pattern": "@"}, "else": format}
}

func tokenFormat() object {
	format := formatted(`[^\s:/@!]+@[A-Za-z][A-Za-z0-9._-]*![A-Za-z][A-Za-z0-9._-]*`)
	return object{"if": object{"type": "string", "pattern": "="}, "then": object{"const": "user@realm!name without the secret"}, "else": format}
}

func nonEmpty() object { return object{"type": "string", "pattern": `\S`} }

// isSet matches an object whose field is set. To the controller, null and empty text
// are the same as a missing field.
func isSet(field string) object {
	return object{"required": []string{field}, "properties": object{field: nonEmpty()}}
}

func isTrue(field string) object {
	return object{"required": []string{field}, "properties": object{field: object{"const": true}}}
}

// exactlyOne matches an object in which one of two fields is set.
func exactlyOne(first, second string) []object {
	return []object{{"if": isSet(second), "else": isSet(first)}, exclude(isSet(first), first, second)}
}

// exclude matches an object in which the fields are not set if the condition holds. A
// constant is part of Helm's message: "value must be 'unset, because ca is set'".
func exclude(condition object, because string, unset ...string) object {
	var rules []object
	for _, field := range unset {
		rules = append(rules, object{"if": isSet(field), "then": object{"properties": object{field: object{"const": "unset, because " + because + " is set"}}}})
	}
	return object{"if": condition, "then": object{"allOf": rules}}
}
