// Chainrule in C++17, in one file: call components over HTTP, and write programs that are components.
//
//     chainrule::Component wing("http://localhost:8000");
//     chainrule::Value out = wing.apply({{"chord", chainrule::Array{{3}, {1, 2, 3}}}});
//     double lift = out["lift"].number();
//
//     int main(int argc, char **argv) {               // for from_command(["./program", "{input}", "{output}"])
//         return chainrule::run(argc, argv, [](const chainrule::Value &inputs) { return ...; });
//     }
//
// Arrays are float64; those of other types are converted when they arrive. Bodies are frames: a JSON header and raw
// buffers (docs/explanation/wire-format.md). Needs POSIX sockets and a little-endian machine.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

namespace chainrule {

// What went wrong: `code` is the stable code of Chainrule's errors, `status` that of HTTP (0 if there was no answer).
struct Error : std::runtime_error {
    Error(std::string code_, const std::string &message, int status_ = 0)
        : std::runtime_error(message), code(std::move(code_)), status(status_) {}
    std::string code;
    int status;
};

struct Array {
    std::vector<std::size_t> shape;
    std::vector<double> values;  // row by row
};

// Nested data: null, bool, number, text, list, object or array.
class Value {
public:
    enum Kind { Null, Bool, Number, Text, List, Object, Numbers };

    Value() = default;
    Value(bool b) : kind_(Bool), number_(b) {}
    Value(double x) : kind_(Number), number_(x) {}
    Value(int x) : kind_(Number), number_(x) {}
    Value(const char *s) : kind_(Text), text_(s) {}
    Value(std::string s) : kind_(Text), text_(std::move(s)) {}
    Value(Array a) : kind_(Numbers), array_(std::move(a)) {}
    Value(const std::vector<double> &v) : Value(Array{{v.size()}, v}) {}
    Value(std::initializer_list<std::pair<std::string, Value>> members) : kind_(Object) {
        for (auto &m : members) add(m.first, m.second);
    }
    static Value list(std::vector<Value> items = {}) {
        Value v;
        v.kind_ = List;
        v.items_ = std::move(items);
        return v;
    }
    static Value object() {
        Value v;
        v.kind_ = Object;
        return v;
    }

    Kind kind() const { return kind_; }
    bool boolean() const { return expect(Bool).number_ != 0; }
    const std::string &text() const { return expect(Text).text_; }
    const std::vector<Value> &items() const { return items_; }
    const std::vector<std::string> &keys() const { return expect(Object).keys_; }

    // A number; an array with one element is one as well.
    double number() const {
        if (kind_ == Numbers && array_.values.size() == 1) return array_.values[0];
        return expect(Number).number_;
    }
    // An array; lists of numbers (JSON has no arrays) and numbers are as well.
    Array array() const {
        if (kind_ == Number) return Array{{}, {number_}};
        if (kind_ != List) return expect(Numbers).array_;
        Array all{{items_.size()}, {}};
        for (std::size_t i = 0; i < items_.size(); i++) {
            Array each = items_[i].array();
            if (i == 0) all.shape.insert(all.shape.end(), each.shape.begin(), each.shape.end());
            if (!std::equal(each.shape.begin(), each.shape.end(), all.shape.begin() + 1, all.shape.end()))
                throw Error("array_shape_mismatch", "expected rows of one length in a list of numbers");
            all.values.insert(all.values.end(), each.values.begin(), each.values.end());
        }
        return all;
    }
    bool has(const std::string &key) const { return find(key) != nullptr; }
    const Value &operator[](const std::string &key) const {
        const Value *found = find(key);
        if (!found) throw Error("path_unknown", "there is no member '" + key + "'");
        return *found;
    }
    const Value &operator[](const char *key) const { return (*this)[std::string(key)]; }
    void add(const std::string &key, Value value) {
        keys_.push_back(key);
        items_.push_back(std::move(value));
    }
    void push(Value value) { items_.push_back(std::move(value)); }

private:
    const Value &expect(Kind wanted) const {
        static const char *names[] = {"null", "a bool", "a number", "text", "a list", "an object", "an array"};
        if (kind_ != wanted)
            throw Error("invalid_input", std::string("expected ") + names[wanted] + "; found " + names[kind_]);
        return *this;
    }
    const Value *find(const std::string &key) const {
        for (std::size_t i = 0; i < keys_.size(); i++)
            if (keys_[i] == key) return &items_[i];
        return nullptr;
    }
    Kind kind_ = Null;
    double number_ = 0;
    std::string text_;
    std::vector<std::string> keys_;  // of an object, beside items_
    std::vector<Value> items_;
    Array array_;
};

namespace detail {

inline void write_text(std::string &out, const std::string &text) {
    out += '"';
    for (unsigned char c : text) {
        char escaped[8];
        if (c == '"' || c == '\\') (out += '\\') += char(c);
        else if (c < 0x20) out.append(escaped, std::snprintf(escaped, sizeof escaped, "\\u%04x", c));
        else out += char(c);
    }
    out += '"';
}

inline void write_number(std::string &out, double x) {
    char text[40];
    out.append(text, std::snprintf(text, sizeof text, "%.17g", x));
}

// JSON. With `data`, arrays are references into it and odd numbers are marked, as in frames; otherwise nested lists.
inline void write(std::string &out, const Value &v, std::string *data) {
    switch (v.kind()) {
        case Value::Null: out += "null"; return;
        case Value::Bool: out += v.boolean() ? "true" : "false"; return;
        case Value::Text: write_text(out, v.text()); return;
        case Value::Number: {
            double x = v.number();
            if (std::isfinite(x)) write_number(out, x);
            else if (data) out += std::isnan(x) ? R"({"$float":"nan"})" : x > 0 ? R"({"$float":"inf"})" : R"({"$float":"-inf"})";
            else out += std::isnan(x) ? "NaN" : x > 0 ? "Infinity" : "-Infinity";
            return;
        }
        case Value::List:
        case Value::Object: {
            bool is_object = v.kind() == Value::Object;
            // An object whose only member begins with $ would stand for something else.
            bool is_marked = data && is_object && v.keys().size() == 1 && v.keys()[0][0] == '$';
            if (is_marked) out += R"({"$map":)";
            out += is_object ? '{' : '[';
            for (std::size_t i = 0; i < v.items().size(); i++) {
                if (i) out += ',';
                if (is_object) {
                    write_text(out, v.keys()[i]);
                    out += ':';
                }
                write(out, v.items()[i], data);
            }
            out += is_object ? '}' : ']';
            if (is_marked) out += '}';
            return;
        }
        case Value::Numbers: break;
    }
    Array a = v.array();
    if (!data) {  // rows of rows
        std::function<void(std::size_t, std::size_t, std::size_t)> rows = [&](std::size_t axis, std::size_t at, std::size_t n) {
            if (axis == a.shape.size()) return write(out, Value(a.values[at]), nullptr);
            out += '[';
            std::size_t step = a.shape[axis] ? n / a.shape[axis] : 0;
            for (std::size_t i = 0; i < a.shape[axis]; i++) {
                if (i) out += ',';
                rows(axis + 1, at + i * step, step);
            }
            out += ']';
        };
        return rows(0, 0, a.values.size());
    }
    out += R"({"$array":["float64",[)";
    for (std::size_t i = 0; i < a.shape.size(); i++) out += (i ? "," : "") + std::to_string(a.shape[i]);
    std::size_t bytes = a.values.size() * sizeof(double);
    data->resize((data->size() + 63) / 64 * 64);
    out += "]," + std::to_string(data->size()) + "," + std::to_string(bytes) + "]}";
    data->append(reinterpret_cast<const char *>(a.values.data()), bytes);
}

class Parser {
public:
    // With `data`, marked objects are what they stand for.
    Parser(const char *begin, std::size_t n, const char *data = nullptr, std::size_t n_data = 0)
        : p_(begin), end_(begin + n), data_(data), n_data_(n_data) {}

    Value document() {
        Value v = value(0);
        blanks();
        if (p_ != end_) fail();
        return v;
    }

private:
    [[noreturn]] void fail() const { throw Error("json_invalid", "the answer is not JSON"); }
    void blanks() {
        while (p_ < end_ && std::strchr(" \t\r\n", *p_)) p_++;
    }
    bool take(const char *word) {
        std::size_t n = std::strlen(word);
        if (std::size_t(end_ - p_) < n || std::memcmp(p_, word, n)) return false;
        p_ += n;
        return true;
    }
    Value value(int depth) {
        blanks();
        if (p_ == end_ || depth > 200) fail();
        if (take("null")) return {};
        if (take("true")) return true;
        if (take("false")) return false;
        if (take("NaN")) return std::nan("");
        if (take("Infinity")) return HUGE_VAL;
        if (take("-Infinity")) return -HUGE_VAL;
        if (*p_ == '"') return string();
        if (take("[")) {
            Value list = Value::list();
            for (blanks(); !take("]"); blanks()) {
                if (!list.items().empty() && !take(",")) fail();
                list.push(value(depth + 1));
            }
            return list;
        }
        if (take("{")) return object(depth);
        std::string digits;
        while (p_ < end_ && std::strchr("+-0123456789.eE", *p_)) digits += *p_++;
        char *stop = nullptr;
        double x = std::strtod(digits.c_str(), &stop);
        if (digits.empty() || *stop) fail();
        return x;
    }
    Value object(int depth) {
        Value found = Value::object();
        for (blanks(); !take("}"); blanks()) {
            if (!found.items().empty() && !take(",")) fail();
            blanks();
            std::string key = string();
            blanks();
            if (!take(":")) fail();
            found.add(key, value(depth + 1));
        }
        if (!data_ || found.keys().size() != 1) return found;
        const std::string &key = found.keys()[0];
        const Value &inner = found.items()[0];
        if (key == "$array") return array(inner);
        if (key == "$map") return inner;
        if (key == "$int") return std::strtod(inner.text().c_str(), nullptr);
        if (key == "$float") return inner.text() == "nan" ? std::nan("") : inner.text() == "inf" ? HUGE_VAL : -HUGE_VAL;
        if (key == "$sparse") throw Error("not_supported", "sparse arrays are not supported; ask for a dense one");
        return found;
    }
    std::string string() {
        if (!take("\"")) fail();
        std::string out;
        while (p_ < end_ && *p_ != '"') {
            if (*p_ != '\\') {
                out += *p_++;
                continue;
            }
            if (++p_ == end_) fail();
            char c = *p_++;
            const char *from = "\"\\/bfnrt", *to = "\"\\/\b\f\n\r\t", *at = std::strchr(from, c);
            if (at && c) out += to[at - from];
            else if (c == 'u') unicode(out);
            else fail();
        }
        if (!take("\"")) fail();
        return out;
    }
    unsigned hex() {
        if (end_ - p_ < 4) fail();
        unsigned code = unsigned(std::strtoul(std::string(p_, 4).c_str(), nullptr, 16));
        p_ += 4;
        return code;
    }
    void unicode(std::string &out) {
        unsigned code = hex();
        if (code >= 0xD800 && code < 0xDC00 && take("\\u")) code = 0x10000 + ((code - 0xD800) << 10) + (hex() - 0xDC00);
        if (code < 0x80) out += char(code);
        else if (code < 0x800) (out += char(0xC0 | code >> 6)) += char(0x80 | (code & 63));
        else if (code < 0x10000) ((out += char(0xE0 | code >> 12)) += char(0x80 | (code >> 6 & 63))) += char(0x80 | (code & 63));
        else (((out += char(0xF0 | code >> 18)) += char(0x80 | (code >> 12 & 63))) += char(0x80 | (code >> 6 & 63))) += char(0x80 | (code & 63));
    }
    template <class T> void copy(Array &a, std::size_t at, std::size_t bytes) {
        if (bytes != a.values.size() * sizeof(T)) throw Error("frames_malformed", "an array has another size than its shape");
        for (std::size_t i = 0; i < a.values.size(); i++) {
            T x;
            std::memcpy(&x, data_ + at + i * sizeof(T), sizeof(T));
            a.values[i] = double(x);
        }
    }
    Value array(const Value &facts) {
        if (facts.items().size() != 4) throw Error("not_supported", "compressed arrays are not supported");
        const std::string &type = facts.items()[0].text();
        auto at = std::size_t(facts.items()[2].number()), bytes = std::size_t(facts.items()[3].number());
        if (at > n_data_ || bytes > n_data_ - at) throw Error("frames_malformed", "an array lies outside of the message");
        Array a;
        std::size_t n = 1;
        for (const Value &size : facts.items()[1].items()) {
            a.shape.push_back(std::size_t(size.number()));
            n *= a.shape.back();
        }
        if (n > bytes) throw Error("frames_malformed", "an array has another size than its shape");
        a.values.resize(n);
        if (type == "float64") copy<double>(a, at, bytes);
        else if (type == "float32") copy<float>(a, at, bytes);
        else if (type == "int64") copy<std::int64_t>(a, at, bytes);
        else if (type == "int32") copy<std::int32_t>(a, at, bytes);
        else if (type == "int16") copy<std::int16_t>(a, at, bytes);
        else if (type == "int8") copy<std::int8_t>(a, at, bytes);
        else if (type == "uint64") copy<std::uint64_t>(a, at, bytes);
        else if (type == "uint32") copy<std::uint32_t>(a, at, bytes);
        else if (type == "uint16") copy<std::uint16_t>(a, at, bytes);
        else if (type == "uint8" || type == "bool") copy<std::uint8_t>(a, at, bytes);
        else throw Error("not_supported", "arrays of " + type + " are not supported");
        return a;
    }
    const char *p_, *end_, *data_;
    std::size_t n_data_;
};

inline const char *magic() { return "\x89" "CRF\r\n\x1a\n"; }

inline std::string to_frames(const Value &v) {
    std::string header, data;
    write(header, v, &data);
    std::string out(24, '\0');
    std::uint16_t version = 1;
    auto n = std::uint32_t(header.size());
    out += header;
    out.resize((out.size() + 63) / 64 * 64);
    out += data;
    std::uint64_t total = out.size();
    std::memcpy(&out[0], magic(), 8);
    std::memcpy(&out[8], &version, 2);
    std::memcpy(&out[12], &n, 4);
    std::memcpy(&out[16], &total, 8);
    return out;
}

inline Value from_frames(const std::string &body) {
    std::uint32_t n = 0;
    std::uint64_t total = 0;
    if (body.size() >= 24) {
        std::memcpy(&n, &body[12], 4);
        std::memcpy(&total, &body[16], 8);
    }
    if (body.size() < 24 || std::memcmp(body.data(), magic(), 8) || total != body.size() || n > body.size() - 24)
        throw Error("frames_malformed", "the answer is not in frames");
    std::size_t begin = std::min((24 + std::size_t(n) + 63) / 64 * 64, body.size());
    return Parser(body.data() + 24, n, body.data() + begin, body.size() - begin).document();
}

}  // namespace detail

// A served component. Each call is a connection of its own.
class Component {
public:
    explicit Component(const std::string &url, std::string token = "") : token_(std::move(token)) {
        if (url.rfind("http://", 0)) throw Error("bad_url", "expected a URL that begins with http://; found " + url);
        std::string rest = url.substr(7);
        std::size_t slash = rest.find('/');
        path_ = slash == std::string::npos ? "" : rest.substr(slash);
        while (!path_.empty() && path_.back() == '/') path_.pop_back();
        std::string place = rest.substr(0, slash);
        std::size_t colon = place.rfind(':');
        host_ = place.substr(0, colon);
        port_ = colon == std::string::npos ? "80" : place.substr(colon + 1);
    }

    Value apply(const Value &inputs) const { return call("apply", {{"inputs", inputs}}); }

    // The gradient of ⟨cotangents, outputs⟩; cotangents by path of the output.
    Value vector_jacobian_product(const Value &inputs, const std::vector<std::string> &by,
                                  const std::vector<std::string> &of, const Value &cotangents) const {
        return call("vector_jacobian_product", {{"inputs", inputs}, {"vjp_inputs", texts(by)},
                                                {"vjp_outputs", texts(of)}, {"cotangent_vector", cotangents}});
    }

    Value jacobian_vector_product(const Value &inputs, const std::vector<std::string> &by,
                                  const std::vector<std::string> &of, const Value &tangents) const {
        return call("jacobian_vector_product", {{"inputs", inputs}, {"jvp_inputs", texts(by)},
                                                {"jvp_outputs", texts(of)}, {"tangent_vector", tangents}});
    }

    // Any endpoint, with the whole payload of its request.
    Value call(const std::string &endpoint, const Value &payload) const {
        std::string body = detail::to_frames(payload);
        std::string request = "POST " + path_ + "/" + endpoint + " HTTP/1.1\r\nHost: " + host_ + ":" + port_ +
            "\r\nConnection: close\r\nContent-Type: application/vnd.chainrule.frames\r\nAccept: "
            "application/vnd.chainrule.frames\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
            (token_.empty() ? "" : "Authorization: Bearer " + token_ + "\r\n") + "\r\n" + body;
        std::string answer = exchange(request);
        std::size_t split = answer.find("\r\n\r\n");
        if (split == std::string::npos || answer.size() < 12) throw Error("unreachable", "the answer was cut off");
        int status = std::atoi(answer.c_str() + 9);
        std::string content = answer.substr(split + 4);
        if (status >= 400) throw refusal(content, status);
        return detail::from_frames(content);
    }

private:
    static Value texts(const std::vector<std::string> &all) {
        Value list = Value::list();
        for (auto &each : all) list.push(each);
        return list;
    }

    static Error refusal(const std::string &content, int status) {
        try {
            Value problem = detail::Parser(content.data(), content.size()).document();
            std::string code = problem.has("code") ? problem["code"].text() : "error";
            for (const char *name : {"message", "title"})
                if (problem.has(name) && problem[name].kind() == Value::Text) return Error(code, problem[name].text(), status);
            return Error(code, content, status);
        } catch (const Error &) {
            return Error("error", content.substr(0, 500), status);
        }
    }

    std::string exchange(const std::string &request) const {
        addrinfo hints{}, *found = nullptr;
        hints.ai_socktype = SOCK_STREAM;
        if (getaddrinfo(host_.c_str(), port_.c_str(), &hints, &found)) throw Error("unreachable", "there is no host " + host_);
        int s = -1;
        for (addrinfo *a = found; a && s < 0; a = a->ai_next) {
            s = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
            if (s >= 0 && connect(s, a->ai_addr, a->ai_addrlen)) {
                close(s);
                s = -1;
            }
        }
        freeaddrinfo(found);
        if (s < 0) throw Error("unreachable", "nothing answers at " + host_ + ":" + port_);
        std::string answer;
        char piece[65536];
        ssize_t n = 1;
        for (std::size_t at = 0; at < request.size() && n > 0; at += std::size_t(n))
            n = send(s, request.data() + at, request.size() - at, MSG_NOSIGNAL);
        while (n > 0 && (n = recv(s, piece, sizeof piece, 0)) > 0) answer.append(piece, std::size_t(n));
        close(s);
        if (n < 0) throw Error("unreachable", "the connection to " + host_ + ":" + port_ + " broke");
        return answer;
    }

    std::string host_, port_, path_, token_;
};

// The main function of a program that is a component by `from_command(["./program", "{input}", "{output}"], ...)`.
inline int run(int argc, char **argv, const std::function<Value(const Value &)> &apply) {
    try {
        if (argc != 3) throw Error("bad_arguments", "expected two arguments: the files of the inputs and of the outputs");
        std::ifstream source(argv[1], std::ios::binary);
        std::string text((std::istreambuf_iterator<char>(source)), std::istreambuf_iterator<char>());
        std::string out;
        detail::write(out, apply(detail::Parser(text.data(), text.size()).document()), nullptr);
        std::ofstream(argv[2], std::ios::binary) << out;
        return 0;
    } catch (const std::exception &error) {
        std::cerr << error.what() << std::endl;
        return 1;
    }
}

}  // namespace chainrule
